"""When a run ends before its budget does, and which evaluation was the best: pure functions of what a checkpoint keeps."""

from __future__ import annotations

from flatout.engine.job import Job
from flatout.engine.progress import Progress

HIGHER_IS_BETTER = frozenset({"accuracy", "auc", "r2", "f1"})


def watched_metric(job: Job) -> tuple[str, bool]:
    """The metric that decides what is best, and whether more of it is better."""
    if job.early_stop is not None and job.early_stop.metric != job.objective.metric:
        return job.early_stop.metric, job.early_stop.metric in HIGHER_IS_BETTER
    return job.objective.metric, job.objective.better == "max"


def note_evaluation(job: Job, progress: Progress, metrics: dict[str, float]) -> bool:
    """Record an evaluation; True if it is the best so far."""
    progress.metrics = metrics
    progress.evaluated_at = progress.samples
    metric, more_is_better = watched_metric(job)
    value = metrics.get(metric)
    if value is not None and value == value:
        best = progress.best
        if best is None or (value > best["value"] if more_is_better else value < best["value"]):
            progress.best = {"step": progress.step, "metric": metric, "value": value}
            progress.best_metrics = metrics
            progress.evaluations_since_best = 0
            return True
    progress.evaluations_since_best += 1
    return False


def early_end(job: Job, progress: Progress) -> str | None:
    """Why the run is over although budget is left, or None."""
    target = job.budget.target
    if target is not None and target.metric in progress.metrics and target.reached(progress.metrics[target.metric]):
        return f"{target} reached"
    if job.early_stop is not None and progress.evaluations_since_best >= job.early_stop.patience:
        return f"{job.early_stop.metric} has not improved for {job.early_stop.patience} evaluations"
    return None
