"""The ranges of values inside of a model, from as many rows as it takes until they stay the same.

Three ways to cut a range: `minmax` keeps every value; `percentile` leaves out the 0.01% at each end; `entropy` cuts where the
distribution loses least information when it is rounded to 128 steps (the idea of TensorRT's calibration).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

METHODS = ("minmax", "percentile", "entropy")
FIRST_ROWS = 32
_STEADY = 0.01  # widths that change by less when the rows are doubled do not change any more
_TAIL = 1e-4
_KEPT = 50_000  # values of a tensor, evenly spread over the rows
_BINS, _STEPS = 2048, 128

Floats = npt.NDArray[np.float32]


@dataclass
class SeenValues:
    """What was seen of one tensor. Values that are not finite are counted and left out."""

    low: float = np.inf
    high: float = -np.inf
    odd: int = 0
    kept: list[Floats] = field(default_factory=list)

    def see(self, values: npt.NDArray[Any]) -> None:
        flat = np.asarray(values, np.float32).reshape(-1)
        finite = flat[np.isfinite(flat)]
        self.odd += len(flat) - len(finite)
        if len(finite):
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
            self.kept.append(finite[:: max(1, len(finite) * FIRST_ROWS // _KEPT)].copy())

    @property
    def is_empty(self) -> bool:
        return self.low > self.high

    def cut(self, method: str) -> tuple[float, float]:
        if method == "minmax":
            return self.low, self.high
        values = np.concatenate(self.kept)
        if method == "percentile":
            low, high = np.quantile(values, [_TAIL, 1 - _TAIL])
            return float(low), float(high)
        limit = _entropy_limit(values)
        return max(self.low, -limit), min(self.high, limit)


@dataclass(frozen=True)
class Ranges:
    """`rows`: how many were enough; `is_steady`: whether they were, or all were used."""

    seen: Mapping[str, SeenValues]
    rows: int
    is_steady: bool

    def of(self, method: str) -> dict[str, tuple[float, float]]:
        return {name: one.cut(method) for name, one in self.seen.items() if not one.is_empty}

    @property
    def empty(self) -> list[str]:
        return [name for name, one in self.seen.items() if one.is_empty]

    @property
    def odd_values(self) -> int:
        return sum(one.odd for one in self.seen.values())


def steady_ranges(batches: Iterator[Mapping[str, npt.NDArray[Any]]], rows_of: int) -> Ranges:
    """`batches` of `rows_of` rows each. The rows are doubled until no range grows by more than 1%."""
    seen: dict[str, SeenValues] = {}
    rows, wanted, widths = 0, FIRST_ROWS, np.zeros(0)
    for batch in batches:
        for name, values in batch.items():
            seen.setdefault(name, SeenValues()).see(values)
        rows += rows_of
        if rows < wanted:
            continue
        now = np.array([one.high - one.low for one in seen.values() if not one.is_empty])
        if len(now) == len(widths) and (now <= widths * (1 + _STEADY)).all():
            return Ranges(seen, rows, True)
        widths, wanted = now, 2 * wanted
    return Ranges(seen, rows, False)


def _entropy_limit(values: Floats) -> float:
    """The limit on absolute values at which rounding to 128 steps loses least."""
    counts, edges = np.histogram(np.abs(values), bins=_BINS)
    best, limit = np.inf, float(edges[-1])
    for end in range(_STEPS, _BINS + 1, _STEPS // 2):
        kept = counts[:end].astype(np.float64)
        kept[-1] += counts[end:].sum()  # what is beyond the limit is clipped to it
        sizes = np.full(_STEPS, end // _STEPS)
        sizes[: end % _STEPS] += 1  # bins of each step
        starts, filled = np.cumsum(sizes) - sizes, counts[:end] > 0
        means = np.add.reduceat(counts[:end], starts) / np.maximum(np.add.reduceat(filled.astype(np.int64), starts), 1)
        coarse = np.repeat(means, sizes) * filled
        lost = _divergence(kept, coarse)
        if lost < best:
            best, limit = lost, float(edges[end])
    return limit


def _divergence(kept: npt.NDArray[np.float64], coarse: npt.NDArray[np.float64]) -> float:
    p, q = kept / max(kept.sum(), 1.0), coarse / max(coarse.sum(), 1.0)
    there = p > 0
    return float((p[there] * np.log(p[there] / np.maximum(q[there], 1e-9))).sum())
