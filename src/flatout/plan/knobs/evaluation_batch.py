"""How many samples are evaluated at once. No activations are kept for a backward pass, so more fit than in training.

Metrics are sums over all rows, and batch norm uses its running statistics: neither depends on the batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flatout.base.units import show_bytes
from flatout.engine.settings import Settings, with_values
from flatout.machine.ceilings import Ceilings
from flatout.measure.counts import Operation
from flatout.plan.costs import Rates
from flatout.plan.knobs.knob import Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation
from flatout.plan.tier import free_bytes
from flatout.plan.work import work_of

name = "evaluation_batch"
off = 0

_GAIN, _GAIN_ON_HOST = 1.1, 1.4  # required gain of a doubling; more on a CPU, where small batches may fit a cache
_SHARE = 0.03  # of the free memory


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if s.job.data.validation is None:
        yield Choice(name, 0, "nothing is evaluated")
    elif (why := _left_alone(s, str(values["tier"]))) is not None:
        yield Choice(name, 0, f"same as training: {why}")
    else:
        yield _chosen(s, values)


def _left_alone(s: Situation, tier: str) -> str | None:
    train, validation = s.job.data.train, s.job.data.validation
    assert validation is not None
    if train.shapes_vary or validation.shapes_vary:
        return "batch sizes depend on their tokens"
    if tier != "resident" or not validation.in_memory:
        return "rows are read from the source, which limits the speed"
    return s.plain.reason or None


def _chosen(s: Situation, values: Mapping[str, Any]) -> Choice:
    assert s.job.data.validation is not None and s.ceilings is not None
    rows, free, batch = len(s.job.data.validation), free_bytes(s.device), s.job.batch
    settings = replace(with_values(Settings(device=str(s.device)), values), compile="off", graph=False)
    try:
        forward = Forward.of(s, settings, s.ceilings)
    except Exception as error:  # a forward that depends on values can't be traced
        return Choice(name, 0, f"same as training: the model can't be traced without data ({type(error).__name__})")
    least = _GAIN_ON_HOST if forward.by_turns else _GAIN
    why_not = ""
    while not why_not:
        gain, held = forward.a_row_s(batch) / forward.a_row_s(2 * batch), forward.held_bytes(2 * batch)
        if 2 * batch > rows:
            why_not = f"only {rows} rows to evaluate"
        elif gain < least:
            why_not = f"twice as many would be about {gain:.2f}x as fast, too little to be sure"
        elif held > _SHARE * free:
            why_not = f"twice as many would use {show_bytes(held)} of {show_bytes(free)} free"
        else:
            batch *= 2
    if batch == s.job.batch:
        return Choice(name, 0, f"same as training: {why_not}")
    gain = forward.a_row_s(s.job.batch) / forward.a_row_s(batch)
    held_of = f"{show_bytes(forward.held_bytes(batch))} of {show_bytes(free)} free"
    return Choice(name, batch, f"about {gain:.1f}x as fast as {s.job.batch}, which is launch-bound; uses {held_of}")


@dataclass(frozen=True)
class Forward:
    """Predicted time and memory of a forward pass without a backward."""

    rows: int
    work_s: float  # computing and moving bytes: proportional to rows
    starts_s: float  # on the device, independent of rows
    calls_s: float  # on the host, independent of rows
    bytes: int
    by_turns: bool  # the host calls and computes in turns; else it calls ahead

    @classmethod
    def of(cls, s: Situation, settings: Settings, ceilings: Ceilings) -> Forward:
        work, rates = work_of(s.job, settings), Rates.of(ceilings, settings)
        operations = [one for one in work.counts.operations if not one.backward]
        costs = [rates.cost(one) for one in operations]
        return cls(
            rows=work.rows,
            work_s=sum(cost.compute_s + cost.memory_s for cost in costs),
            starts_s=sum(cost.start_s for cost in costs),
            calls_s=sum(cost.call_s for cost in costs),
            bytes=most_held(operations),
            by_turns=s.device.type == "cpu",
        )

    def a_row_s(self, rows: int) -> float:
        device_s = self.work_s * rows / self.rows + self.starts_s
        whole_s = device_s + self.calls_s if self.by_turns else max(device_s, self.calls_s)
        return max(whole_s, 1e-12) / rows

    def held_bytes(self, rows: int) -> int:
        return self.bytes * rows // self.rows


def most_held(operations: Iterable[Operation]) -> int:
    """The peak of bytes that were written and are still needed: without a backward nothing else is kept."""
    steps = list(operations)
    last = {number: place for place, one in enumerate(steps) for number, _ in (*one.reads, *one.writes)}
    held: dict[int, int] = {}
    most = 0
    for place, one in enumerate(steps):
        held |= dict(one.writes)
        most = max(most, sum(held.values()))
        held = {number: size for number, size in held.items() if last[number] > place}
    return most


rules = SettingRules(zero="as training")
