"""What the findings know about a script: its observations, where a step's time goes, and the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from flatout.doctor import kinds, marks
from flatout.doctor.account import (
    CHECKPOINT,
    DATA,
    EVALUATION,
    OPTIMIZER,
    ROWS,
    Account,
    account,
)
from flatout.doctor.seen import Calls, Fetched, Optimizer, ScriptLoader, ScriptRecord
from flatout.doctor.trace import Trace
from flatout.machine.gains import Gains
from flatout.machine.probe import Probe

_MOST_STRETCH = 1.25
# rows that the profiler does not slow down; the others are scaled back
_SOLID = frozenset({*kinds.COMPUTE, kinds.COPY, kinds.COMMUNICATION, kinds.COMPILE, DATA, CHECKPOINT, EVALUATION})


@dataclass(frozen=True)
class Case:
    """Milliseconds are per training step, including its share of evaluations and checkpoints."""

    seen: ScriptRecord
    trace: Trace
    account: Account
    rows: dict[str, float]
    probe: Probe | None = None
    places: dict[str, str] = field(default_factory=dict)
    page_s: float = 0.0  # time to get a new memory page on this host
    gains: Gains = field(default_factory=Gains)  # speed-ups of optimisations on this machine

    @property
    def step_ms(self) -> float:
        return sum(self.rows.values())

    @property
    def train_ms(self) -> float:
        return self.step_ms - self.rows[EVALUATION] - self.rows[CHECKPOINT]

    def of_steps(self) -> Case:
        """Without evaluations and checkpoints: a few steps do not show how often they occur."""
        return replace(self, rows={**self.rows, EVALUATION: 0.0, CHECKPOINT: 0.0})

    @property
    def compute_ms(self) -> float:
        return sum(self.rows[row] for row in kinds.COMPUTE)

    @property
    def on_device(self) -> bool:
        return self.seen.device != "cpu"

    @property
    def device(self) -> torch.device:
        return torch.device(self.seen.device)

    def share(self, ms: float) -> float:
        return ms / self.step_ms if self.step_ms else 0.0

    def ms(self, nanoseconds: float) -> float:
        """Nanoseconds in the profiled window, as milliseconds per step."""
        return nanoseconds / 1e6 / max(self.trace.steps, 1)

    def per_step(self, count: float) -> float:
        return count / max(self.trace.steps, 1)

    @property
    def samples_per_step(self) -> float:
        loader = self.training_loader
        if loader is not None and loader.samples and self.seen.window_steps:
            return loader.samples / self.seen.window_steps
        calls = [call for call in self.training_calls if call.parameter_dtype]  # no losses: their batch may be tokens
        return max((call.batch * round(max(call.count / max(call.between, 1), 1)) for call in calls), default=0)

    @property
    def training_loader(self) -> ScriptLoader | None:
        """The loader that feeds the steps."""
        return max((one for one in self.seen.loaders if one.in_steps), key=lambda one: one.in_steps, default=None)

    def batches_per_step(self, loader: ScriptLoader) -> float:
        return max(loader.in_steps, 1) / max(self.seen.window_steps, 1)

    def read_by_workers(self, loader: ScriptLoader) -> list[Fetched]:
        """What the loader's workers reported."""
        number = self.seen.loaders.index(loader)
        return [told for told in self.seen.fetched if told.loader == number and told.batches]

    def fetch_ms(self, loader: ScriptLoader) -> float:
        """Time for a worker to read a batch; 0 if no worker reported it."""
        told = self.read_by_workers(loader)
        return 1e3 * sum(one.fetch_s for one in told) / max(sum(one.batches for one in told), 1)

    @property
    def training_calls(self) -> list[Calls]:
        return [call for call in self.seen.calls if call.gradient and not call.is_in(self.seen.evaluations)]

    @property
    def optimizer(self) -> Optimizer | None:
        return max(self.seen.optimizers, key=lambda one: one.elements, default=None)

    @property
    def ceiling_share(self) -> float | None:
        """Share of this machine's best measured rate of matrix products, in any precision."""
        if self.probe is None or not self.probe.ceilings.matmul_flops or not self.trace.flops or not self.step_ms:
            return None
        best = max(rate.value for rate in self.probe.ceilings.matmul_flops.values())
        return self.trace.flops / max(self.trace.steps, 1) / (self.step_ms / 1e3) / best


def make_case(
    seen: ScriptRecord, trace: Trace, probe: Probe | None, operator_s: float, page_s: float = 0.0, gains: Gains | None = None
) -> Case:
    """`operator_s`: the time to call the smallest operator on this machine."""
    plain_ms = 1e3 * seen.window_s / seen.window_steps if seen.window_steps else None
    looked_ms = (trace.end - trace.begin) / 1e6 / max(trace.steps, 1)
    calls = sorted(_called(trace))
    shortest = calls[len(calls) // 10] if calls else 0  # their time is call and profiler overhead only
    called_ns = 1e9 * operator_s
    told = account(trace, min(max(called_ns, shortest), 3 * called_ns), looked_ms / plain_ms if plain_ms else 1.0)
    profiled = {row: spent / 1e6 / max(trace.steps, 1) for row, spent in told.rows.items()}
    least_ms = 0.0 if trace.device else called_ns / 1e6 * len(calls) / max(trace.steps, 1)
    if plain_ms is not None and (waited_ms := _waited_ms(seen)) is not None:  # the only row measured without the profiler
        data_ms = _idle_ms(waited_ms, plain_ms, told.device_busy / 1e6 / max(trace.steps, 1))
        rows = {**_as_without_profiler({**profiled, DATA: 0.0}, plain_ms - data_ms, least_ms), DATA: data_ms}
    else:
        rows = _as_without_profiler(profiled, plain_ms, least_ms)
    steps = max(seen.steps - 1, 1)
    rows[EVALUATION] += 1e3 * sum(period.seconds for period in seen.evaluations) / steps
    rows[CHECKPOINT] += 1e3 * sum(period.seconds for period in seen.checkpoints) / steps
    places = {row: told.where(row) for row in ROWS}
    for row, periods in ((EVALUATION, seen.evaluations), (CHECKPOINT, seen.checkpoints)):
        if periods:
            places[row] = periods[-1].where
    if (optimizer := max(seen.optimizers, key=lambda one: one.elements, default=None)) is not None:
        places[OPTIMIZER] = places[OPTIMIZER] or optimizer.stepped
    return Case(seen, trace, told, rows, probe, places, page_s, gains or Gains())


def _called(trace: Trace) -> Iterator[int]:
    """Time of each operator, without those that load data or write a checkpoint."""
    until = 0
    for span in sorted(trace.host, key=lambda span: (span.start, -span.end)):
        if span.mark is not None and span.mark.kind in (marks.DATA, marks.CHECKPOINT):
            until = max(until, span.end)
        elif span.start >= until and span.name.startswith("aten::") and kinds.of_operator(span.name):
            yield span.end - span.start


def _waited_ms(seen: ScriptRecord) -> float | None:
    """Wait for data per step without the profiler, which slows steps down until workers keep up. None without a loader."""
    if not any(loader.in_steps for loader in seen.loaders):
        return None
    other = (*seen.evaluations, *seen.checkpoints)
    waits = [wait for loader in seen.loaders for wait in loader.waited]
    spent = sum(end - start for start, end in waits if not any(period.start <= start < period.end for period in other))
    return spent / 1e6 / seen.window_steps


def _idle_ms(waited_ms: float, step_ms: float, busy_ms: float) -> float:
    """How long the device is idle while the host waits for data: it may still be busy with earlier work."""
    behind_ms = max(busy_ms - (step_ms - waited_ms), 0.0)
    return max(min(waited_ms - behind_ms, step_ms - busy_ms), 0.0)


def _as_without_profiler(profiled: dict[str, float], plain_ms: float | None, least_ms: float) -> dict[str, float]:
    """The rows of a step without the profiler: they add up to the time of such a step.

    The profiler's overhead is in the soft rows, which are scaled down to the time that the solid rows leave, but not below
    `least_ms`, the time to call all operators.
    """
    solid = sum(ms for row, ms in profiled.items() if row in _SOLID)
    soft = sum(profiled.values()) - solid
    if plain_ms is None or not solid + soft:
        return dict(profiled)
    left = max(plain_ms - solid, min(least_ms, soft, plain_ms))
    if not soft or not solid or left > _MOST_STRETCH * soft:
        of_soft = of_solid = plain_ms / (solid + soft)
    else:
        of_soft, of_solid = left / soft, (plain_ms - left) / solid
    return {row: ms * (of_solid if row in _SOLID else of_soft) for row, ms in profiled.items()}
