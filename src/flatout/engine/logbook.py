"""What a run writes down between steps: loss and speed at log points, metrics at evaluations.

Log points are the one regular wait for the device. Evaluations also say which weights are the best so far, and may end the run
before its budget does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from flatout.base.events import EventLog
from flatout.engine.assembly import Assembly
from flatout.engine.device import peak_bytes, sync_point
from flatout.engine.evaluation import evaluate_in_memory
from flatout.engine.job import HIGHER_IS_BETTER, Job
from flatout.engine.one_process import Together
from flatout.engine.progress import Progress
from flatout.engine.records import Interval
from flatout.engine.settings import LOG_SLOTS, Settings
from flatout.machine.reading import MeterReading

INTERVAL_S = 0.5


class Logbook:
    def __init__(self, job: Job, parts: Assembly, events: EventLog, every_steps: int, meet: Callable[[Progress], None]) -> None:
        """`meet` is called at each log point: several processes agree there on the time, on stopping and on saving."""
        self._meet = meet
        self.last_loss: float | None = None
        self._job = job
        self._parts = parts
        self._events = events
        self._fixed = every_steps > 0
        self._every = min(every_steps, LOG_SLOTS) or 10
        self._step = self._samples = 0
        self._elapsed_s = 0.0

    def start_at(self, progress: Progress) -> None:
        self._step, self._samples, self._elapsed_s = progress.step, progress.samples, progress.elapsed_s

    def due(self, progress: Progress) -> bool:
        return progress.step - self._step >= self._every

    def behind(self, progress: Progress) -> bool:
        return progress.step != self._step

    def first_of_interval(self, progress: Progress) -> bool:
        return progress.step == self._step

    def read(self, progress: Progress) -> int:
        """Wait for the device, emit the event and count skipped steps in `progress`. Returns how many were skipped."""
        parts = self._parts
        reading = parts.meters.read()  # takes milliseconds with some drivers: now, while the device still has work
        with sync_point():
            interval = parts.drain()
        self._meet(progress)
        parts.budget.spend(progress)
        parts.budget.spend_energy(progress, reading.energy_j)
        steps, seconds = progress.step - self._step, progress.elapsed_s - self._elapsed_s
        skips = interval.skipped(by_norm=parts.step.scale is None)  # with a loss scale, gradients overflow on purpose
        skipped = sum(skips)
        progress.skipped += skipped
        for skip in skips:
            progress.nonfinite_in_row = progress.nonfinite_in_row + 1 if skip else 0
        if steps:
            self.last_loss = interval.mean_loss if interval.mean_loss is not None else self.last_loss
            self._emit(progress, interval, (progress.samples - self._samples) / max(seconds, 1e-9), reading)
            if not self._fixed:
                self._every = max(1, min(LOG_SLOTS, round(steps / max(seconds, 1e-9) * INTERVAL_S)))
        if skipped:
            self._events.emit("nonfinite", step=progress.step, skipped=skipped, in_row=progress.nonfinite_in_row)
        self.start_at(progress)
        return skipped

    def _emit(self, progress: Progress, interval: Interval, samples_per_s: float, reading: MeterReading) -> None:
        tokens = self._job.data.train.tokens_per_row
        self._events.emit(
            "step",
            step=progress.step,
            samples=progress.samples,
            epoch=progress.samples / rows if (rows := self._job.data.epoch_rows) else None,
            done=self._parts.budget.done_share(progress),
            loss=interval.mean_loss,
            lr=self._parts.step.update.rate,
            grad_norm=interval.last_norm,
            samples_per_s=samples_per_s,
            tokens_per_s=samples_per_s * tokens if tokens > 1 else None,
            memory_bytes=peak_bytes(self._parts.step.device),
            power_w=reading.power_w,
            **({} if reading.energy_j is None else {"energy_j": round(progress.energy_j, 3)}),
            skipped=progress.skipped,
            elapsed_s=progress.elapsed_s,
        )


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
        """The number of samples at which the next evaluation is due; 0 if there is none."""
        every = self._job.evaluate_every
        if self.every_samples is None or every is None:
            return 0
        if every.unit == "steps" and (steps := self._parts.feed.steps) is not None:
            count = max(1, round(every.amount))
            return steps.samples_after((steps.steps_until(samples) // count + 1) * count)
        return (samples // self.every_samples + 1) * self.every_samples

    def metrics(self, step: int) -> dict[str, float] | None:
        """Metrics of the current weights. None: a signal came, and the evaluation is repeated after the resume."""
        parts, together, world = self._parts, self._together, self._together.world

        def should_stop() -> bool:
            together.watch.beat(step, "evaluation")
            return together.hears_stop()

        parts.step.exchange.average_statistics()
        average = parts.state.average
        how: Any = {"precision": self._settings.precision, "device": torch.device(self._settings.device)}
        how |= {"should_stop": should_stop, "on_split": self._on_split, "exchange": parts.step.exchange}
        assert parts.evaluation is not None
        given = parts.state.model, self._job.evaluated, parts.evaluation
        with parts.step.exchange.in_place(), average.in_place() if average else nullcontext():
            if world.size == 1:
                return evaluate_in_memory(*given, **how)

            from flatout.engine.parallel.shared_evaluation import SharedEvaluation  # here: one process starts sooner without it

            return SharedEvaluation(*given, **how, world=world, on_wait=lambda: together.watch.beat(step, "exchange")).metrics()

    def note(self, progress: Progress, metrics: dict[str, float]) -> bool:
        """Store and report metrics. Returns whether they are the best so far."""
        progress.next_evaluation = self.next_after(progress.samples)
        is_best = _note(self._job, progress, metrics)
        self._events.emit("evaluation", step=progress.step, samples=progress.samples, metrics=metrics, best=is_best)
        return is_best

    def early_end(self, progress: Progress) -> str | None:
        """Why the run ends before its budget is spent, or None."""
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
    """The metric that decides which weights are best, and whether higher is better."""
    if job.best_by is not None:
        return job.best_by.metric, job.best_by.higher_is_better
    if job.early_stop is not None and job.early_stop.metric != job.objective.metric:
        return job.early_stop.metric, job.early_stop.metric in HIGHER_IS_BETTER
    return job.objective.metric, job.objective.better == "max"
