"""What the times of two trials say: how much faster is one than the other?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flatout.boost.remedies.remedy import STEPS
from flatout.boost.trial import Told
from flatout.boost.trying import WORTH
from flatout.measure.stats import Comparison, compare, compare_paired, summarize

_FEWEST = 5


def times_of(told: Told, kind: str) -> tuple[float, ...]:
    return told.steps_s if kind == STEPS else told.evaluations_s


def pooled(told: Told, more: Told) -> Told:
    return replace(
        told,
        steps_s=(*told.steps_s, *more.steps_s),
        evaluations_s=(*told.evaluations_s, *more.evaluations_s),
        beside_s=(*told.beside_s, *more.beside_s),
        beside_evaluations_s=(*told.beside_evaluations_s, *more.beside_evaluations_s),
        processes=told.processes + more.processes,
    )


def _was(before: Told, after: Told, kind: str) -> tuple[tuple[float, ...], int]:
    """What `after` is held against, and of how many processes: what was timed beside it, where there is such a thing."""
    beside = after.beside_s if kind == STEPS else after.beside_evaluations_s
    return (beside, after.processes) if beside else (times_of(before, kind), before.processes)


def compared(before: Told, after: Told, kind: str) -> Comparison | None:
    """How much faster `after` is; None where there is too little to say so."""
    was, now = _was(before, after, kind)[0], times_of(after, kind)
    if min(len(was), len(now)) < _FEWEST:
        return None
    in_pairs = kind == STEPS and len(after.beside_s) == len(now)
    return (compare_paired if in_pairs else compare)(was, now, prefer="max", margin=WORTH)


def of_the_whole(before: Told, after: Told, kind: str) -> float:
    """How much faster all of it is, the slowest of each process left out: what a remedy puts off shows in a few only."""
    return _mean_but(*_was(before, after, kind)) / _mean_but(times_of(after, kind), after.processes)


def _mean_but(values: Sequence[float], slowest: int) -> float:
    left = sorted(values)[: max(1, len(values) - slowest)]
    return sum(left) / len(left)


def median_beside_s(told: Told) -> float | None:
    return summarize(told.beside_s).median if told.beside_s else None


def median_step_s(told: Told | None) -> float | None:
    return None if told is None or not told.steps_s else summarize(told.steps_s).median
