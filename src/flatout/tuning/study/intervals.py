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


def of_the_next(values: Sequence[float]) -> SeedInterval:
    """Where one more value of the same kind lies: a training with another seed."""
    return _interval(values, math.sqrt(1 + 1 / max(1, len(values))))


def of_the_mean(values: Sequence[float]) -> SeedInterval:
    return _interval(values, math.sqrt(1 / max(1, len(values))))


def _interval(values: Sequence[float], factor: float) -> SeedInterval:
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    if n < 2:
        return SeedInterval(mean, -math.inf, math.inf, n)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    apart = _T[min(n - 1, len(_T)) - 1] * factor * spread
    return SeedInterval(mean, mean - apart, mean + apart, n)
