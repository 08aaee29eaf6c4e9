"""Medians with their uncertainty, and the question behind every choice: is A really better than B?

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
_SEED = 20_011  # a verdict must not change when it is computed again

Values = npt.NDArray[np.float64]
Better = Literal["min", "max"]


@dataclass(frozen=True)
class Summary:
    """A median and its 95% interval. Fewer than six values can't support 95%: `low` and `high` are then their range."""

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
    n: int  # of the smaller arm, or pairs


def summarize(values: Sequence[float]) -> Summary:
    ordered = np.sort(_checked("values", values))
    n = len(ordered)
    outside = _values_outside(n)
    return Summary(float(np.median(ordered)), float(ordered[outside]), float(ordered[n - 1 - outside]), n)


def compare(a: Sequence[float], b: Sequence[float], *, prefer: Better = "min", margin: float = 0.0) -> Comparison:
    """Is A better than B, judged by two independent sets of repeats?

    `prefer` says whether small ("min": seconds, losses) or large ("max": rates) values are good. With a `margin` of 0.02 A
    must be better by more than 2%.
    """
    first, second = _positive("a", a), _positive("b", b)
    draw = np.random.default_rng(_SEED)
    ratios = _resampled_medians(first, draw) / _resampled_medians(second, draw)
    # with few repeats even a complete separation of the two arms happens by chance
    chance = 2 / math.comb(len(first) + len(second), len(first))
    ratio = float(np.median(first) / np.median(second))
    return _judge(ratio, ratios, chance, min(len(first), len(second)), prefer, margin)


def compare_paired(a: Sequence[float], b: Sequence[float], *, prefer: Better = "min", margin: float = 0.0) -> Comparison:
    """As `compare`, where a[i] and b[i] were taken under the same conditions: what they share cancels out."""
    first, second = _positive("a", a), _positive("b", b)
    if len(first) != len(second):
        got = f"{len(first)} in a and {len(second)} in b"
        raise UsageError(f"paired values must be equally many, got {got}; compare() takes arms of any length")
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
    """How many sorted values may be left out at each end so that the rest still covers the median 95% of the time."""
    # in whole numbers: of a thousand values and more neither the counts nor their shares fit a float
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
        raise UsageError(f"{name} must be above zero for a ratio to mean anything, got a smallest value of {array.min():g}")
    return array
