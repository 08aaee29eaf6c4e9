"""The steps at which trials are compared, and how long the first rung has to be: as long as ranks need to be stable.

All rungs are parts of one schedule. On the first wave each trial is trained to two checkpoints in a row, and the ranks at both
are compared. While they disagree, the first rung grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SHORTEST = 16  # the first rung is this fraction of a whole trial, if ranks are stable
STABLE, KEPT = 0.7, 0.75


def checkpoints(total: int) -> tuple[int, ...]:
    """A sixteenth of a whole trial, an eighth, and so on; the last is the whole."""
    steps = [max(1, round(total / 2**power)) for power in range(int(math.log2(_SHORTEST)), -1, -1)]
    return tuple(sorted(set(steps)))


@dataclass(frozen=True)
class RankCheck:
    """The ranks of the same trials at two steps."""

    early: int
    late: int
    trials: int
    correlation: float
    kept: float  # the share of the best quarter at the later step that was in the better half at the earlier

    @property
    def stable(self) -> bool:
        return self.correlation >= STABLE and self.kept >= KEPT

    def describe(self) -> str:
        return (
            f"steps {self.early:,} and {self.late:,} rank {self.trials} trials with a correlation of {self.correlation:.2f}; "
            f"{self.kept:.0%} of the best quarter at {self.late:,} were in the better half at {self.early:,}"
        )


def compare_ranks(early: int, late: int, before: Sequence[float], after: Sequence[float]) -> RankCheck | None:
    """None for fewer than four trials: they say nothing about ranks."""
    count = len(before)
    if count < 4:
        return None
    first, second = _ranks(before), _ranks(after)
    spread = first.std() * second.std()
    correlation = float(((first - first.mean()) * (second - second.mean())).mean() / spread) if spread > 0 else 0.0
    best = np.argsort(-second, kind="stable")[: max(1, count // 4)]
    kept = float((first[best] >= np.median(first)).mean())
    return RankCheck(early, late, count, correlation, kept)


def _ranks(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Equal values share their mean rank."""
    found = np.asarray(values, dtype=np.float64)
    _, inverse, counts = np.unique(found, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[inverse].astype(np.float64)
