"""The range test: the learning rate rises step by step from far too low to far too high, and the loss shows what each does.

Three times, each with another order of rows and other dropout, from the same weights. A loss far above the best ends a test.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SEEDS = 3
LOWEST, HIGHEST = 1e-7, 10.0
_SMOOTHING = 0.06  # of the test's steps: the window of the moving average
_EARLY_STEPS = 5  # at least so many begin a test: their mean is the loss that it began with
_DIVERGED, _CLEAR, _DIVERGED_LEAST = 0.25, 4.0, 0.02  # above that: share of the fall so far, deviations, share of the loss
_FALLEN = 0.75  # deviations of one loss: a smoothed mean of three tests that falls by less has not fallen
_BEGUN = 0.1  # of its whole fall: the loss has begun to fall


@dataclass(frozen=True)
class RangeCurve:
    """One test: the smoothed loss after a step at each rate."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    diverged_at: float | None  # None: it had not at the highest rate
    noise: float  # deviation of the losses where the rate is too low to change anything


@dataclass(frozen=True)
class RangeTest:
    """The mean of the curves up to the first divergence, and what it says.

    `steepest`: the rate at which the loss falls fastest; None: there is none, and `why_none` says why: "flat" or "at_once".
    `low`: where the loss has begun to fall; `bottom`: where it is lowest; `high`: the highest rate at which no test diverged.
    """

    curves: tuple[RangeCurve, ...]
    rates: tuple[float, ...]
    losses: tuple[float, ...]
    steepest: float | None
    low: float
    bottom: float
    high: float
    why_none: Literal["", "flat", "at_once"] = ""


def rate_of(number: int, steps: int) -> float:
    return float(LOWEST * (HIGHEST / LOWEST) ** (number / max(1, steps - 1)))


def has_diverged(losses: Sequence[float], steps: int) -> bool:
    return _end(losses, smoothed(losses, steps)) < len(losses)


def smoothed(losses: Sequence[float], steps: int) -> list[float]:
    """An exponential moving average without the bias of its start."""
    keep = 1 - 1 / max(2.0, _SMOOTHING * steps)
    found, mean, weight = [], 0.0, 0.0
    for loss in losses:
        mean, weight = keep * mean + (1 - keep) * loss, keep * weight + (1 - keep)
        found.append(mean / weight)
    return found


def _end(losses: Sequence[float], smooth: Sequence[float]) -> int:
    """The number of steps before the loss rose clearly above where it began, or was not finite."""
    early = losses[: max(_EARLY_STEPS, len(losses) // 8)]
    if not all(map(math.isfinite, early)):
        return 0
    start, noise, best = statistics.fmean(early), statistics.pstdev(early), math.inf
    for place, (raw, loss) in enumerate(zip(losses, smooth, strict=True)):
        if not math.isfinite(raw):
            return place
        best = min(best, loss)
        if loss > start + max(_DIVERGED * (start - best), _CLEAR * noise, _DIVERGED_LEAST * abs(start)):
            return place
    return len(losses)


def curve_of(losses: Sequence[float], steps: int) -> RangeCurve:
    smooth = smoothed(losses, steps)
    end = _end(losses, smooth)
    rates = tuple(rate_of(number, steps) for number in range(end))
    noise = statistics.pstdev(losses[: max(2, end // 8)]) if end > 2 else 0.0
    return RangeCurve(rates, tuple(smooth[:end]), rate_of(end, steps) if end < len(losses) else None, noise)


def read_range(curves: Sequence[RangeCurve]) -> RangeTest:
    """Curves of the same rates; they may end at different ones."""
    shortest = min(curves, key=lambda curve: len(curve.rates))
    rates, length = shortest.rates, len(shortest.rates)
    losses = [sum(curve.losses[place] for curve in curves) / len(curves) for place in range(length)]
    if length < 5:
        here = rates[-1] if rates else LOWEST
        return RangeTest(tuple(curves), rates, tuple(losses), None, here, here, here, "at_once")
    early = losses[: length // 8 + 1]
    first = sum(early) / len(early)
    bottom = min(range(length), key=losses.__getitem__)
    fall = first - losses[bottom]
    noise = statistics.fmean(curve.noise for curve in curves)
    if fall <= max(_FALLEN * noise, 1e-3 * abs(first)):
        return RangeTest(tuple(curves), rates, tuple(losses), None, rates[0], rates[bottom], rates[-1], "flat")
    begun = 1 + max((place for place in range(bottom) if losses[place] > first - _BEGUN * fall), default=0)
    reach = max(2, length // 30)

    def slope(place: int) -> float:
        after, before = min(bottom, place + reach), max(0, place - reach)
        return (losses[after] - losses[before]) / math.log(rates[after] / rates[before])

    steepest, low = rates[min(range(max(1, begun - reach), bottom + 1), key=slope)], rates[min(begun, bottom)]
    return RangeTest(tuple(curves), rates, tuple(losses), steepest, low, rates[bottom], rates[-1])
