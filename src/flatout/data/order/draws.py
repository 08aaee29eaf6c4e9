"""Draws with replacement, keyed by position: by weight, or from every class alike. The interface is that of an order."""

from __future__ import annotations

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.order.keyed import below, hash32, keyed, to_device


class DrawTables:
    """Tables of a draw, kept on the device that last asked for them. "cuda" names a device that tensors call "cuda:0"."""

    def __init__(self, *tables: Tensor) -> None:
        self.rows = len(tables[0])
        self._host = tuple(table.cpu() for table in tables)
        self._asked, self._placed = torch.device("cpu"), self._host

    def on(self, device: torch.device | str) -> tuple[Tensor, ...]:
        asked = torch.device(device)
        if asked != self._asked:
            self._asked, self._placed = asked, tuple(to_device(table, asked) for table in self._host)
        return self._placed


class Weighted:
    """Row r is drawn with probability weights[r] / sum(weights)."""

    def __init__(self, seed: int, weights: Tensor) -> None:
        self._high, self._low = keyed(seed, "weighted", "high"), keyed(seed, "weighted", "low")
        self._cumulative = DrawTables(check_weights(weights).cumsum(0))

    @property
    def epoch_rows(self) -> int:
        return self._cumulative.rows

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        positions, (cumulative,) = torch.arange(start, stop, device=device), self._cumulative.on(device)
        # 52 bits: with 32 alone, rows of a large table would be missed or doubled
        bits = (hash32(positions, self._high) << 20).bitwise_or_(hash32(positions, self._low) >> 12)
        target = bits.to(torch.float64).mul_(2.0**-52).mul_(cumulative[-1])
        return torch.searchsorted(cumulative, target, right=True).clamp_(max=self.epoch_rows - 1)

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.arange(start, stop, device=device)


class Balanced:
    """A class among those present, all alike, then one of its rows, all alike."""

    def __init__(self, seed: int, labels: Tensor) -> None:
        self._of_class, self._of_row = keyed(seed, "balanced", "class"), keyed(seed, "balanced", "row")
        _, counts = torch.unique(labels, return_counts=True)
        self._tables = DrawTables(labels.argsort(stable=True), counts, counts.cumsum(0) - counts)

    @property
    def epoch_rows(self) -> int:
        return self._tables.rows

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        positions = torch.arange(start, stop, device=device)
        sorted_rows, counts, starts = self._tables.on(device)
        label = below(hash32(positions, self._of_class), len(counts))
        place = below(hash32(positions, self._of_row), counts.index_select(0, label))
        return sorted_rows.index_select(0, place.add_(starts.index_select(0, label)))

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.arange(start, stop, device=device)


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
