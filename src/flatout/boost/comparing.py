"""Selects the times of two trials to compare: of steps or evaluations, measured in alternation or one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flatout.boost.remedies.remedy import STEPS
from flatout.boost.trial import Told
from flatout.measure.judging import ComparedTimes, times_of

_FEWEST = 5


def compared(before: Told, after: Told, kind: str) -> ComparedTimes:
    if kind == STEPS:
        return times_of(after, before)
    return ComparedTimes(after.evaluations_s, after.against_evaluations_s or before.evaluations_s, paired=False)


def are_too_few(times: ComparedTimes) -> bool:
    return min(len(times.now_s), len(times.was_s)) < _FEWEST


def pooled(told: Told, more: Told) -> Told:
    return replace(
        told,
        steps_s=(*told.steps_s, *more.steps_s),
        evaluations_s=(*told.evaluations_s, *more.evaluations_s),
        against_s=(*told.against_s, *more.against_s),
        against_evaluations_s=(*told.against_evaluations_s, *more.against_evaluations_s),
        processes=told.processes + more.processes,
    )


def of_the_whole(before: Told, after: Told, kind: str) -> float:
    """Speed-up of the total time, without each process's slowest value. It shows work that a remedy moves into a few steps."""
    beside = after.against_s if kind == STEPS else after.against_evaluations_s
    times = compared(before, after, kind)
    was = _mean_but(times.was_s, after.processes if beside else before.processes)
    return was / _mean_but(times.now_s, after.processes)


def _mean_but(values: Sequence[float], slowest: int) -> float:
    left = sorted(values)[: max(1, len(values) - slowest)]
    return sum(left) / len(left)
