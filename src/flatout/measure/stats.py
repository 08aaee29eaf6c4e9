"""Medians with their uncertainty, and comparisons: is A really better than B?

Timings are skewed and have outliers, so nothing here assumes a distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from flatout.base.errors import UsageError

CONFIDENCE = 0.95
_ONE_IN = round(2 / (1 - CONFIDENCE))
_RESAMPLES = 4000
_PICKS_AT_ONCE = 4_000_000
_SEED = 20_011  # so that a repeated computation gives the same verdict

Values = npt.NDArray[np.float64]
Better = Literal["min", "max"]


@dataclass(frozen=True)
class Summary:
    """A median and its 95% interval. With fewer than six values, `low` and `high` are their range."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """A's median over B's, and its 95% interval. `better`: is A better than B? None means not enough evidence."""

    ratio: float
    low: float
    high: float
    better: bool | None
    n: int  # of the smaller sample, or pairs


def summarize(values: Sequence[float]) -> Summary:
    ordered = np.sort(_checked("values", values))
    n = len(ordered)
    outside = _values_outside(n)
    return Summary(float(np.median(ordered)), float(ordered[outside]), float(ordered[n - 1 - outside]), n)


def compare(a: Sequence[float], b: Sequence[float], *, prefer: Better = "min", margin: float = 0.0) -> Comparison:
    """Is A better than B, for two independent sets of repeats?

    `prefer`: "min" if small values are good (seconds, losses), "max" if large ones are (rates). With a `margin` of 0.02, A must
    be better by more than 2%.
    """
    first, second = _positive("a", a), _positive("b", b)
    draw = np.random.default_rng(_SEED)
    ratios = _resampled_medians(first, draw) / _resampled_medians(second, draw)
    # with few repeats, even completely separate samples can happen by chance
    chance = 2 / math.comb(len(first) + len(second), len(first))
    ratio = float(np.median(first) / np.median(second))
    return _judge(ratio, ratios, chance, min(len(first), len(second)), prefer, margin)


def compare_paired(a: Sequence[float], b: Sequence[float], *, prefer: Better = "min", margin: float = 0.0) -> Comparison:
    """Like `compare`, but a[i] and b[i] were taken under the same conditions, so shared effects cancel out."""
    first, second = _positive("a", a), _positive("b", b)
    if len(first) != len(second):
        got = f"{len(first)} in a and {len(second)} in b"
        raise UsageError(f"paired samples must have the same length, got {got}; compare() takes any lengths")
    quotients: Values = first / second
    chance = 2 / 2 ** len(quotients)
    resampled = _resampled_medians(quotients, np.random.default_rng(_SEED))
    return _judge(float(np.median(quotients)), resampled, chance, len(quotients), prefer, margin)


def _judge(ratio: float, resampled: Values, chance: float, n: int, prefer: Better, margin: float) -> Comparison:
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(edge) for edge in np.quantile(resampled, [tail, 1 - tail]))
    better: bool | None = None
    if chance <= tail:
        is_smaller, is_larger = high < 1 - margin, low > 1 + margin
        if is_smaller or is_larger:
            better = is_smaller if prefer == "min" else is_larger
    return Comparison(ratio, low, high, better, n)


def _resampled_medians(values: Values, draw: np.random.Generator) -> Values:
    at_once = max(1, min(_RESAMPLES, _PICKS_AT_ONCE // len(values)))
    medians = []
    for first in range(0, _RESAMPLES, at_once):
        picks = draw.integers(0, len(values), size=(min(at_once, _RESAMPLES - first), len(values)))
        medians.append(np.median(values[picks], axis=1))
    return np.concatenate(medians)


def _values_outside(n: int) -> int:
    """How many sorted values can be dropped at each end so that the rest still covers the median 95% of the time."""
    # in integers: for a thousand values or more, the counts and their shares do not fit a float
    tail, count, outside = 1, 1, 0
    while outside < (n - 1) // 2 and tail * _ONE_IN <= 2**n:
        outside += 1
        count = count * (n - outside + 1) // outside
        tail += count
    return max(outside - 1, 0)


def _checked(name: str, values: Sequence[float]) -> Values:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise UsageError(f"{name} must be one or more finite numbers, got {values!r}")
    return array


def _positive(name: str, values: Sequence[float]) -> Values:
    array = _checked(name, values)
    if not (array > 0).all():
        raise UsageError(f"{name} must be above zero to form a ratio, got a smallest value of {array.min():g}")
    return array
