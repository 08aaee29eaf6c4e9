"""Which process trains which trials: the longest first, to whoever is free the earliest, and rather where their weights are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flatout.tuning.training.layout import PACKED, STACKED, Layout

Trials = Sequence[tuple[int, Sequence[str]]]  # the number of a trial, and its overrides

_UNKNOWN_RATE = 100.0  # trial-steps a second, while no group was measured
_MOVED_S = 0.05  # to write down a trial that goes on in another process, and to read it there
_ROUNDING = 0.05


@dataclass(frozen=True)
class TrialWork:
    """Trials of one group that go on from one step. What is trained together is a part of it."""

    trials: Trials
    start: int
    to: int
    layout: Layout

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.trials]

    @property
    def rate(self) -> float:
        """Trial-steps a second of one process."""
        whole = max(self.layout.rates.values(), default=self.layout.rate_elsewhere or _UNKNOWN_RATE)
        return whole / self.layout.processes if self.layout.kind == PACKED else whole

    @property
    def seconds(self) -> float:
        return len(self.trials) * (self.to - self.start) / self.rate


@dataclass(frozen=True)
class Homes:
    """`of`: the process that has a trial's weights. `shared`: processes that see the folder where weights are written down."""

    of: Mapping[int, int]
    shared: frozenset[int]

    def moving_s(self, unit: TrialWork, place: int) -> float:
        """What it costs that other processes have the weights."""
        apart = [home for number in unit.numbers if (home := self.of.get(number, place)) != place]
        lost = sum(not {home, place} <= self.shared for home in apart)
        return len(apart) * _MOVED_S + lost * unit.start / unit.rate


def placed(works: Sequence[TrialWork], places: Sequence[int], homes: Homes) -> dict[int, list[TrialWork]]:
    """The units that each place trains, in order. The same works give the same units."""
    target_s = sum(work.seconds for work in works) / len(places)
    units = [unit for work in works for unit in _cut(work, len(places), target_s, homes)]
    found: dict[int, list[TrialWork]] = {place: [] for place in places}
    busy_s = dict.fromkeys(places, 0.0)
    for unit in sorted(units, key=lambda one: -one.seconds):
        costs_s = {place: busy_s[place] + unit.seconds + homes.moving_s(unit, place) for place in places}
        best = min(places, key=lambda place: (costs_s[place], places.index(place)))
        busy_s[best] = costs_s[best]
        found[best].append(unit)
    return found


def _cut(work: TrialWork, places: int, target_s: float, homes: Homes) -> list[TrialWork]:
    """One place trains what fits a stack; for several a stack is divided if it were longer than all the others."""
    count = len(work.trials)
    width = work.layout.width if work.layout.kind == STACKED else count
    if places == 1:
        return [replace(work, trials=work.trials[first : first + width]) for first in range(0, count, width)]
    pieces = count
    if work.layout.kind == STACKED:
        pieces = max(math.ceil(count / width), min(count, math.ceil(work.seconds / target_s - _ROUNDING)))
    trials = sorted(work.trials, key=lambda one: homes.of.get(one[0], -1))  # those that are together stay so
    ends = [count * piece // pieces for piece in range(pieces + 1)]
    return [replace(work, trials=trials[first:last]) for first, last in pairwise(ends)]
