"""Draws with replacement, keyed by position: by weight, or from every class alike. The interface is that of an order."""

from __future__ import annotations

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.keyed import below, hash32, keyed
from flatout.data.order import to_device


class Weighted:
    """Row r is drawn with probability weights[r] / sum(weights)."""

    def __init__(self, seed: int, weights: Tensor) -> None:
        self._high, self._low = keyed(seed, "weighted", "high"), keyed(seed, "weighted", "low")
        self._cumulative = check_weights(weights).cumsum(0)

    @property
    def epoch_rows(self) -> int:
        return len(self._cumulative)

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        positions = torch.arange(start, stop)
        # 52 bits: with 32 alone, rows of a large table would be missed or doubled
        bits = (hash32(positions, self._high) << 20).bitwise_or_(hash32(positions, self._low) >> 12)
        target = bits.to(torch.float64).mul_(2.0**-52).mul_(self._cumulative[-1])
        return to_device(torch.searchsorted(self._cumulative, target, right=True).clamp_(max=self.epoch_rows - 1), device)

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return to_device(torch.arange(start, stop), device)


class Balanced:
    """A class among those present, all alike, then one of its rows, all alike."""

    def __init__(self, seed: int, labels: Tensor) -> None:
        self._of_class, self._of_row = keyed(seed, "balanced", "class"), keyed(seed, "balanced", "row")
        self._sorted_rows = labels.argsort(stable=True)
        _, self._counts = torch.unique(labels, return_counts=True)
        self._starts = self._counts.cumsum(0) - self._counts

    @property
    def epoch_rows(self) -> int:
        return len(self._sorted_rows)

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        positions = torch.arange(start, stop)
        label = below(hash32(positions, self._of_class), len(self._counts))
        place = below(hash32(positions, self._of_row), self._counts.index_select(0, label))
        return to_device(self._sorted_rows.index_select(0, place.add_(self._starts.index_select(0, label))), device)

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return to_device(torch.arange(start, stop), device)


def check_weights(weights: Tensor) -> Tensor:
    """As float64, or DataError with the first weight that can't be one."""
    if weights.dim() != 1:
        raise DataError(f"draw: weights are one number a row, got a tensor of shape {list(weights.shape)}")
    exact = weights.to(torch.float64)
    bad = (~torch.isfinite(exact) | (exact < 0)).nonzero()
    if len(bad):
        row = int(bad[0])
        raise DataError(f"draw: weights are 0 or more and finite; row {row} has {float(exact[row]):g} ({len(bad)} such rows)")
    if not exact.sum() > 0:
        raise DataError("draw: the weights are all 0, so no row can ever be drawn")
    return exact
