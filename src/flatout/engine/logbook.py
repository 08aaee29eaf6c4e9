"""Log points: where the loop reads what the steps since the last one did. The one regular wait for the device."""

from __future__ import annotations

from collections.abc import Callable

from flatout.base.events import EventLog
from flatout.engine.assembly import Assembly
from flatout.engine.job import Job
from flatout.engine.memory import peak_bytes
from flatout.engine.progress import Progress
from flatout.engine.records import Interval
from flatout.engine.settings import LOG_SLOTS
from flatout.engine.sync import sync_point
from flatout.machine.reading import MeterReading

INTERVAL_S = 0.5


class Logbook:
    def __init__(self, job: Job, parts: Assembly, events: EventLog, every_steps: int, meet: Callable[[Progress], None]) -> None:
        """`meet`: what several processes agree on there, the time first of all."""
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
        """Wait for the device, say what happened, and count what was skipped into the progress. Returns how many that were."""
        parts = self._parts
        reading = parts.meters.read()  # takes milliseconds on some drivers: while the device still has work
        with sync_point():
            interval = parts.drain()
        self._meet(progress)
        parts.budget.spend(progress)
        parts.budget.spend_energy(progress, reading.energy_j)
        steps, seconds = progress.step - self._step, progress.elapsed_s - self._elapsed_s
        skips = interval.skipped(by_norm=parts.step.scale is None)  # a loss scale lets gradients overflow on purpose
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
            skipped=progress.skipped,
            elapsed_s=progress.elapsed_s,
        )
