"""The bench: builds arms, proves each on one step, and times it in turns with the arm that it would replace.

All start from the same weights and use the same batches. These weights have been trained for a few steps: with initial weights,
a deep network turns rounding into noise, and nothing could be compared. An arm that fails gives a report, not an error.
"""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from flatout.base.errors import MachineError
from flatout.data.feeds.feed import feed as make_feed
from flatout.engine.device import peak_bytes, release_cached
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.energy import device_energy
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.machine.power_limit import limited_power
from flatout.measure.clock import synchronize
from flatout.measure.proof import StepSnapshot, check_step
from flatout.plan.tier import free_bytes
from flatout.plan.trials.arm import Arm, Batch
from flatout.plan.trials.reports import FAILED, OUT_OF_MEMORY, SLOW, Ask, Losses, PeakMemory, TrialReport

_BATCHES = 4
_BATCHES_OF_ALL_SHAPES = 16
# Repeats: in turns; one after another; of the baseline, which may take seconds. Fewer could not show a difference at 95%.
_PAIRS, _REPEATS, _REPEATS_ALONE = 7, 5, 4
_WARM_STEPS, _WARM_ROWS, _WARM_TOKENS = 40, 32, 4096
_WINDOW_S = 1.0  # a GPU's counter of energy moves every 0.1 s
_CHUNK_S = 0.03  # timed at once: long compared with the overhead of the clock


class TooSlow(Exception):
    """A step is so much slower than the arm it is compared with that the rest is not worth waiting for."""


@dataclass(frozen=True)
class _Timed:
    steps_s: tuple[float, ...]
    against_s: tuple[float, ...]
    steps_j: tuple[float, ...] = ()
    against_j: tuple[float, ...] = ()
    meter: str = ""


class InputChanged(Exception):
    """Arms share their batches; a model that writes to its input would change the next arm's batch."""


class Bench:
    def __init__(self, job: Job, device: torch.device) -> None:
        self._job, self._device = job, device
        self._pristine = copy.deepcopy(job.model).cpu()
        self._served = make_feed(
            job.data, "streamed" if not job.data.train.in_memory else "pinned", job.batch, device, job.seed
        )
        count = _BATCHES_OF_ALL_SHAPES if job.data.train.shapes_vary else _BATCHES
        self._batches = [self._next() for _ in range(count)]
        self._reference: tuple[Mapping[str, Any], StepSnapshot, StepSnapshot | None, bool] | None = None
        self._standing: tuple[dict[str, Any], Arm] | None = None
        self._spare: tuple[Settings, Arm, StepSnapshot] | None = None
        self._is_warm = False
        self._energy = device_energy(device)
        self.is_lost = False  # the device no longer responds

    def close(self) -> None:
        self._served.close()
        self._energy.close()

    def attempt(self, ask: Ask) -> TrialReport:
        """One trial. Any failure is in the report."""
        began_s = time.perf_counter()
        settings = Settings(**ask.settings)
        try:
            self._warm()
            found = self._tried(settings, ask)
        except Exception as error:
            found = TrialReport(dict(ask.settings), *self._after(error))
        return TrialReport(**{**asdict(found), "took_s": time.perf_counter() - began_s})

    def losses(self, settings: Mapping[str, Any], steps: int, seed: int, after: int = 0) -> Losses:
        """Train `steps` steps from the start, on the job's own batches, skipping the first `after`.

        The learning rate rises from zero to the job's."""
        began_s = time.perf_counter()
        try:
            self._warm()
            arm = self._from_the_start(settings)
            found: list[float] = []
            with arm.surroundings(seed):
                self._served.seek(after)
                arm.prepare()
                for number in range(steps):
                    arm.replace_batch(self._next())
                    arm.advance(self._job.lr * (number + 1) / steps)
                    if number % 16 == 15 or number == steps - 1:
                        found += arm.drain()[0]
        except Exception as error:
            return Losses(dict(settings), (), *self._after(error), took_s=time.perf_counter() - began_s)
        return Losses(dict(settings), tuple(found), took_s=time.perf_counter() - began_s)

    def _from_the_start(self, settings: Mapping[str, Any]) -> Arm:
        """Already compiled if it was the last one tried."""
        if self._standing is not None and self._standing[0] == dict(settings) and self._standing[1].can_rewind:
            self._standing[1].rewind()
            return self._standing[1]
        self._standing = None
        release(self._device)
        return self._arm(Settings(**settings), quiet=False)

    def held(self, settings: Mapping[str, Any], rows: int) -> PeakMemory:
        """Peak memory of two steps on `rows` rows: in the second step the optimizer state exists too.

        If batch shapes vary, uses the largest batches, whole.
        """
        self._standing = None
        release(self._device)
        try:
            batches = self._served.worst() or [_rows(self._batches[0], rows)]
            arm = self._arm(Settings(**settings), quiet=False, batches=batches)
            with arm.surroundings(self._job.seed):
                for _ in range(2 * len(batches)):
                    arm.advance(self._job.lr)
                arm.drain()
            peak, room = peak_bytes(self._device), free_bytes(self._device)
        except Exception as error:
            return PeakMemory(rows, 0, 0, *self._after(error))
        held = torch.accelerator.memory_allocated(self._device) if self._device.type != "cpu" else 0
        return PeakMemory(rows, peak, room + held)

    def _after(self, error: Exception) -> tuple[str, str]:
        """The kind of failure. A device that lost its context can't be used again in this process."""
        found = reason(error)
        try:
            release(self._device)
            synchronize(self._device)
        except RuntimeError:
            self.is_lost = True
        return found

    def _tried(self, settings: Settings, ask: Ask) -> TrialReport:
        if self._device.type != "cpu":
            self._standing = None  # two arms may not fit in memory, and device clocks do not need turns
            release(self._device)
        first, again, draws = self._proven_by(ask.reference)
        began_s = time.perf_counter()
        spared = self._spared(settings)
        if spared is None and self._device.type != "cpu":
            release(self._device)  # the baseline's: a graph is captured in memory that nothing else uses
        arm, snapshot = spared or self._looked_at(settings, draws, self._job.seed)
        there = self._device
        check = check_step(first.to(there), snapshot, settings.precision, again.to(there) if again else None)
        del snapshot
        if draws:  # the compared arm had no dropout: time another one
            arm = self._arm(settings, quiet=False)
            with arm.surroundings(self._job.seed):
                arm.prepare()
                arm.advance(self._job.lr)
                arm.drain()
        first_s = time.perf_counter() - began_s
        with limited_power(settings.power_limit, self._device) as unlimited:
            if unlimited:
                raise MachineError(f"power_limit={settings.power_limit} can't be set: {unlimited}")
            timed = self._timed(arm, ask)
        held = peak_bytes(self._device)
        self._standing = (settings.to_dict(), arm)
        return TrialReport(
            dict(ask.settings), first_s=first_s, peak_bytes=held, check=asdict(check), draws=draws, **asdict(timed)
        )

    def _timed(self, arm: Arm, ask: Ask) -> _Timed:
        other = self._other(ask.against) if self._device.type == "cpu" and ask.against is not None else None
        once_s = _seconds(arm, 1)
        if ask.slowest_step_s is not None:
            slowest_s = max(ask.slowest_step_s, _CHUNK_S)  # short steps are never too slow: the machine may just be busy
            if once_s > slowest_s and _seconds(arm, 1) > slowest_s:
                raise TooSlow(f"a step takes {once_s:.3g} s; the limit is {slowest_s:.3g} s")
        steps = max(1, math.ceil(_CHUNK_S / max(once_s, 1e-6)))
        arms = [arm] if other is None else [arm, other]
        least = _PAIRS if other is not None else _REPEATS if ask.against is not None else _REPEATS_ALONE
        repeats = max(least, min(3 * least, int(ask.measure_s / max(1e-6, len(arms) * steps * once_s))))
        found: dict[int, list[tuple[float, float | None]]] = {id(one): [] for one in arms}
        if steps > 1:  # an untimed chunk first, as launches may run ahead
            for one in arms:
                _seconds(one, steps)
        for number in range(repeats):
            for one in arms[:: -1 if number % 2 else 1]:
                found[id(one)].append(self._metered(one, steps))
        steps_s, against_s = (tuple(seconds for seconds, _ in found.get(id(one), ())) for one in (arm, other))
        if self._energy.resolution_s > _CHUNK_S / 10:  # too slow for single repeats
            joules = [self._windows(arm, median(steps_s), ask.energy_windows), []]
        else:
            joules = [[used for _, used in found.get(id(one), ())] for one in (arm, other)]
        known = [tuple(used for used in of_arm if used) for of_arm in joules]
        if not known[0] or any(len(some) != len(whole) for some, whole in zip(known, joules, strict=True)):
            return _Timed(steps_s, against_s)
        return _Timed(steps_s, against_s, known[0], known[1], self._energy.name)

    def _metered(self, arm: Arm, steps: int) -> tuple[float, float | None]:
        """Seconds and joules of a step."""
        before_j = self._energy.read_j()
        seconds, after_j = _seconds(arm, steps), self._energy.read_j()
        return seconds / steps, None if before_j is None or after_j is None else (after_j - before_j) / steps

    def _windows(self, arm: Arm, step_s: float, count: int) -> list[float | None]:
        """Joules of a step, measured for about a second each time."""
        if self._energy.why_unavailable:
            return []
        steps = max(1, math.ceil(_WINDOW_S / max(step_s, 1e-6)))
        return [self._metered(arm, steps)[1] for _ in range(count)]

    def _other(self, settings: Mapping[str, Any]) -> Arm:
        """The arm to compare with, built again if it was not the last one tried."""
        if self._standing is not None and self._standing[0] == dict(settings):
            return self._standing[1]
        arm = self._arm(Settings(**settings), quiet=False)
        with arm.surroundings(self._job.seed):
            arm.prepare()
            arm.advance(self._job.lr)
            arm.drain()
        return arm

    def _proven_by(self, reference: Mapping[str, Any]) -> tuple[StepSnapshot, StepSnapshot | None, bool]:
        """A step of the baseline, a second one if it differs from the first, and whether the model uses dropout."""
        if self._reference is None or self._reference[0] != dict(reference):
            settings = Settings(**reference)
            few, given = (_rows(self._batches[0], self._few_rows) for _ in range(2))
            draws = self._loss_of(settings, few, 1) != self._loss_of(settings, few, 2)
            if changed := [name for name, column in few.items() if not torch.equal(column, given[name])]:
                raise InputChanged(
                    f"the model changes its input in place ({', '.join(changed)}), so trials can't use the same batch: "
                    "make it return a new tensor instead"
                )
            one = self._looked_at(settings, draws, self._job.seed)[1].to(
                "cpu"
            )  # stays on the CPU: device memory is for the arms
            arm, other = self._looked_at(settings, draws, self._job.seed + 1)
            if one.losses == other.losses:
                self._reference, self._spare = (dict(reference), one, None, draws), None if draws else (settings, arm, other)
            else:
                self._reference = dict(reference), one, other.to("cpu"), draws
        return self._reference[1:]

    def _warm(self) -> None:
        """A few rows of each batch, default settings, a rising learning rate. Weights that become non-finite are discarded."""
        if self._is_warm:
            return
        self._is_warm = True
        plain = Settings(device=str(self._device), fused_optimizer=False, deterministic=self._device.type == "cpu")
        arm = self._arm(plain, quiet=False, batches=[_rows(batch, self._few_rows) for batch in self._batches])
        with arm.surroundings(self._job.seed):
            for number in range(_WARM_STEPS):
                arm.advance(self._job.lr * (number + 1) / _WARM_STEPS)
            losses = arm.drain()[0]
        if math.isfinite(losses[-1]) and losses[-1] < 2 * losses[0]:
            self._pristine.load_state_dict(arm.model.state_dict())

    @property
    def _few_rows(self) -> int:
        return max(4, min(_WARM_ROWS, int(_WARM_TOKENS / self._job.data.train.tokens_per_row)))

    def _loss_of(self, settings: Settings, batch: Batch, seed: int) -> float:
        arm = self._arm(settings, quiet=False, batches=[batch])
        with arm.surroundings(seed):
            arm.advance(0.0)
            return arm.drain()[0][0]

    def _looked_at(self, settings: Settings, quiet: bool, seed: int) -> tuple[Arm, StepSnapshot]:
        arm = self._arm(settings, quiet=quiet)
        with arm.surroundings(seed):
            return arm, arm.snapshot()

    def _spared(self, settings: Settings) -> tuple[Arm, StepSnapshot] | None:
        """The baseline ran twice: if both were bit-identical, the second run serves as its trial."""
        spare, self._spare = self._spare, None
        return None if spare is None or spare[0] != settings else spare[1:]

    def _arm(self, settings: Settings, *, quiet: bool, batches: Sequence[Batch] | None = None) -> Arm:
        return Arm(self._job, self._pristine, settings, self._batches if batches is None else batches, quiet=quiet)

    def _next(self) -> Batch:
        return {name: column.clone() for name, column in self._served.next().items()}


def _rows(batch: Batch, rows: int) -> Batch:
    return {name: column[:rows].clone() for name, column in batch.items()}


def _seconds(arm: Arm, steps: int) -> float:
    with arm.surroundings():
        return arm.seconds(steps)


def reason(error: BaseException) -> tuple[str, str]:
    """The kind of failure, and its first line."""
    kind = OUT_OF_MEMORY if is_out_of_memory(error) else SLOW if isinstance(error, TooSlow) else FAILED
    text = str(error).strip().partition("\n")[0]
    return kind, text if kind != FAILED else f"{type(error).__name__}: {text}"


def release(device: torch.device) -> None:
    gc.collect()
    release_cached(device)
