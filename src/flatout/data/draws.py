"""Draws with replacement, keyed by position: by weight, or from every class alike. The interface is that of an order."""

from __future__ import annotations

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.keyed import below, hash32, keyed
from flatout.data.permutations import to_device


class Weighted:
    """Row r is drawn with probability weights[r] / sum(weights)."""

    def __init__(self, seed: int, weights: Tensor) -> None:
        self._high, self._low = keyed(seed, "weighted", "high"), keyed(seed, "weighted", "low")
        self._cumulative = check_weights(weights).cumsum(0)

    @property
    def epoch_rows(self) -> int:
        return len(self._cumulative)

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        positions, cumulative = torch.arange(start, stop, device=device), self._on(device)
        # 52 bits: with 32 alone, rows of a large table would be missed or doubled
        bits = (hash32(positions, self._high) << 20).bitwise_or_(hash32(positions, self._low) >> 12)
        target = bits.to(torch.float64).mul_(2.0**-52).mul_(cumulative[-1])
        return torch.searchsorted(cumulative, target, right=True).clamp_(max=self.epoch_rows - 1)

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.arange(start, stop, device=device)

    def _on(self, device: torch.device | str) -> Tensor:
        if self._cumulative.device != torch.device(device):
            self._cumulative = to_device(self._cumulative.cpu(), device)
        return self._cumulative


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
        positions = torch.arange(start, stop, device=device)
        self._move(device)
        label = below(hash32(positions, self._of_class), len(self._counts))
        place = below(hash32(positions, self._of_row), self._counts.index_select(0, label))
        return self._sorted_rows.index_select(0, place.add_(self._starts.index_select(0, label)))

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.arange(start, stop, device=device)

    def _move(self, device: torch.device | str) -> None:
        if self._counts.device != torch.device(device):
            self._sorted_rows, self._counts, self._starts = (
                to_device(tensor.cpu(), device) for tensor in (self._sorted_rows, self._counts, self._starts)
            )


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
