"""The evaluations of a run: when they are due, which was the best, and whether they end the run before its budget does."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from flatout.base.events import EventLog
from flatout.engine.assembly import Assembly
from flatout.engine.evaluation import evaluate_in_memory
from flatout.engine.job import Job
from flatout.engine.progress import Progress
from flatout.engine.settings import Settings
from flatout.engine.together import Together

HIGHER_IS_BETTER = frozenset({"accuracy", "auc", "r2", "f1"})


class Evaluations:
    def __init__(self, job: Job, settings: Settings, events: EventLog, parts: Assembly, together: Together) -> None:
        self._job, self._settings, self._events = job, settings, events
        self._parts, self._together = parts, together
        self.every_samples = _interval(job)  # None: only at the end

    @property
    def possible(self) -> bool:
        return self._parts.evaluation is not None

    def due(self, progress: Progress) -> bool:
        return self.every_samples is not None and progress.samples >= progress.next_evaluation

    def next_after(self, samples: int) -> int:
        """Where the next one is due; 0 where none is."""
        every = self._job.evaluate_every
        if self.every_samples is None or every is None:
            return 0
        if every.unit == "steps" and (steps := self._parts.feed.steps) is not None:
            count = max(1, round(every.amount))
            return steps.samples_after((steps.steps_until(samples) // count + 1) * count)
        return (samples // self.every_samples + 1) * self.every_samples

    def metrics(self, step: int) -> dict[str, float] | None:
        """Of the weights as they are now; None: a signal came, and the evaluation is due again after the resume."""
        parts, together, world = self._parts, self._together, self._together.world

        def should_stop() -> bool:
            together.watch.beat(step, "evaluation")
            return together.hears_stop()

        parts.step.exchange.average_statistics()
        average = parts.state.average
        how: Any = {"precision": self._settings.precision, "device": torch.device(self._settings.device)}
        how |= {"should_stop": should_stop, "on_split": self._on_split, "exchange": parts.step.exchange}
        assert parts.evaluation is not None
        given = parts.state.model, self._job.objective, parts.evaluation
        with parts.step.exchange.in_place(), average.in_place() if average else nullcontext():
            if world.size == 1:
                return evaluate_in_memory(*given, **how)

            from flatout.engine.shared_evaluation import SharedEvaluation  # one process starts sooner without it

            return SharedEvaluation(*given, **how, world=world, on_wait=lambda: together.watch.beat(step, "exchange")).metrics()

    def note(self, progress: Progress, metrics: dict[str, float]) -> bool:
        """True if it is the best so far."""
        progress.next_evaluation = self.next_after(progress.samples)
        is_best = _note(self._job, progress, metrics)
        self._events.emit("evaluation", step=progress.step, samples=progress.samples, metrics=metrics, best=is_best)
        return is_best

    def early_end(self, progress: Progress) -> str | None:
        """Why the run is over although budget is left, or None."""
        target, early_stop = self._job.budget.target, self._job.early_stop
        if target is not None and target.metric in progress.metrics and target.reached(progress.metrics[target.metric]):
            return f"{target} reached"
        if early_stop is not None and progress.evaluations_since_best >= early_stop.patience:
            return f"{early_stop.metric} has not improved for {early_stop.patience} evaluations"
        return None

    def _on_split(self, before: int, after: int, reason: str) -> None:
        why = f"out of memory at {before} samples at a time: {reason}"
        self._events.emit("degraded", what="evaluation_batch", value=after, why=why)


def _interval(job: Job) -> int | None:
    if job.evaluate_every is None or job.data.validation is None:
        return None
    return job.evaluate_every.samples(job.epoch_samples(job.evaluate_every), job.rows_per_step, job.data.train.tokens_per_row)


def _note(job: Job, progress: Progress, metrics: dict[str, float]) -> bool:
    progress.metrics = metrics
    progress.evaluated_at = progress.samples
    metric, more_is_better = _watched_metric(job)
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


def _watched_metric(job: Job) -> tuple[str, bool]:
    """The metric that decides what is best, and whether more of it is better."""
    if job.early_stop is not None and job.early_stop.metric != job.objective.metric:
        return job.early_stop.metric, job.early_stop.metric in HIGHER_IS_BETTER
    return job.objective.metric, job.objective.better == "max"
