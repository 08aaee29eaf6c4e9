"""Student's intervals of few values, as they come from a handful of seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# the 0.975 quantile of Student's t by degrees of freedom, 1 to 30; beyond, that of 30 is a little too wide, never too narrow
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

_MUCH = 3.0  # times the spread


@dataclass(frozen=True)
class SeedInterval:
    """A mean of n values with a 95% interval. Of no values the mean is NaN, and any value lies within."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def of_the_next(values: Sequence[float], akin: Sequence[Sequence[float]] = ()) -> SeedInterval:
    """Where one more value of the same kind lies: a training with another seed.

    `akin`: values of others whose spread should be about the same. The spread of eight values alone is often too small by luck.
    Those that spread much more are left out.
    """
    squares, freedom = _squares(values), max(0, len(values) - 1)
    usual = squares / freedom if freedom else 0.0
    for some in akin:
        if len(some) > 1 and _squares(some) <= _MUCH**2 * usual * (len(some) - 1):
            squares, freedom = squares + _squares(some), freedom + len(some) - 1
    return _interval(values, squares, freedom, 1 + 1 / max(1, len(values)))


def of_the_mean(values: Sequence[float]) -> SeedInterval:
    return _interval(values, _squares(values), max(0, len(values) - 1), 1 / max(1, len(values)))


def _squares(values: Sequence[float]) -> float:
    """Of the distances to their mean."""
    mean = math.fsum(values) / max(1, len(values))
    return math.fsum((value - mean) ** 2 for value in values)


def _interval(values: Sequence[float], squares: float, freedom: int, factor: float) -> SeedInterval:
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    if n < 2:
        return SeedInterval(mean, -math.inf, math.inf, n)
    apart = _T[min(freedom, len(_T)) - 1] * math.sqrt(factor * squares / freedom)
    return SeedInterval(mean, mean - apart, mean + apart, n)
