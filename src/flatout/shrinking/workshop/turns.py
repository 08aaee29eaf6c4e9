"""Times two runtimes in turns, so that other load on the machine slows both."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from flatout.data.source import Batch
from flatout.machine.energy import EnergyMeter
from flatout.packaging.runtimes.runtime import Runtime

_BLOCK_S, _MOST_CALLS = 4e-3, 256
_WARM_UP = 3
_STEPS = 15  # of a meter: its energy is then known to 7%


@dataclass
class TimedCalls:
    """Seconds of a call, block by block; and of single calls."""

    blocks_s: list[float] = field(default_factory=list)
    calls_s: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"blocks_s": self.blocks_s, "calls_s": self.calls_s}


def in_turns(
    first: Runtime, second: Runtime, rows: Batch, size: int, turns: int, most_s: float, of_second: Batch | None = None
) -> tuple[TimedCalls, TimedCalls]:
    """Blocks of calls with `size` rows, in the order ab ba ab ...; at least 8 turns, more until `turns` or `most_s`.

    `of_second`: the same rows as the second one takes them, if it is prepared in another way.
    """
    given = _cut(rows, size)
    arms = TimedCalls(), TimedCalls()
    taken = given, given if of_second is None else _cut(of_second, size)
    pairs = list(zip((first, second), arms, taken, strict=True))
    calls = max(_calls(runtime, some) for runtime, _, some in pairs)
    began_s = time.perf_counter()
    for turn in range(turns):
        if turn >= 8 and time.perf_counter() - began_s > most_s:
            break
        for runtime, arm, some in pairs if turn % 2 == 0 else reversed(pairs):
            _block(runtime, some, calls, arm)
    return arms


def joules_of_a_row(runtimes: Sequence[Runtime], rows: Batch, size: int, meter: EnergyMeter) -> list[float | None]:
    """Of each runtime, in stretches of calls that are long for the meter's steps, in the order ab ba. None without a meter."""
    if meter.why_unavailable:
        return [None] * len(runtimes)
    given, length_s = _cut(rows, size), _STEPS * meter.resolution_s
    joules, count = [0.0] * len(runtimes), [0] * len(runtimes)
    for place in [*range(len(runtimes)), *reversed(range(len(runtimes)))]:
        for _ in range(_WARM_UP):
            _call(runtimes[place], given)
        before, began_s = meter.read_j(), time.perf_counter()
        while time.perf_counter() - began_s < length_s:
            _call(runtimes[place], given)
            count[place] += size
        after = meter.read_j()
        if before is None or after is None:
            return [None] * len(runtimes)
        joules[place] += after - before
    return [one / rows for one, rows in zip(joules, count, strict=True)]


def _block(runtime: Runtime, given: Mapping[str, Any], calls: int, arm: TimedCalls) -> None:
    spent_s = 0.0
    for _ in range(calls):
        began_s = time.perf_counter()
        _call(runtime, given)
        call_s = time.perf_counter() - began_s
        arm.calls_s.append(call_s)
        spent_s += call_s
    arm.blocks_s.append(spent_s / calls)


def _call(runtime: Runtime, given: Mapping[str, Any]) -> None:
    """As the server calls it."""
    if runtime.takes_arrays:
        runtime.run_arrays(given)
    else:
        for output in runtime.run({name: torch.from_numpy(column) for name, column in given.items()}).values():
            output.cpu()  # a device has answered when its answer is here


def _calls(runtime: Runtime, given: Mapping[str, Any]) -> int:
    for _ in range(_WARM_UP):
        _call(runtime, given)
    began_s = time.perf_counter()
    _call(runtime, given)
    return max(1, min(_MOST_CALLS, round(_BLOCK_S / max(time.perf_counter() - began_s, 1e-7))))


def _cut(rows: Batch, size: int) -> dict[str, Any]:
    places = torch.arange(size) % len(next(iter(rows.values())))
    return {name: column.index_select(0, places).numpy() for name, column in rows.items()}
