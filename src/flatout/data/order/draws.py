"""Samplers without a shuffle: draws with replacement, by weight or balanced over classes, and the stored order."""

from __future__ import annotations

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.order.keyed import below, floor_divide, hash32, keyed, to_device


class DrawTables:
    """The tables of a draw, kept on the device that used them last."""

    def __init__(self, *tables: Tensor) -> None:
        self.rows = len(tables[0])
        self._host = tuple(table.cpu() for table in tables)
        self._asked, self._placed = torch.device("cpu"), self._host

    def on(self, device: torch.device | str) -> tuple[Tensor, ...]:
        asked = torch.device(device)  # not compared with a tensor's device: "cuda" differs from its "cuda:0"
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
        # 52 bits: 32 would miss or double rows of a large table
        bits = (hash32(positions, self._high) << 20).bitwise_or_(hash32(positions, self._low) >> 12)
        target = bits.to(torch.float64).mul_(2.0**-52).mul_(cumulative[-1])
        return torch.searchsorted(cumulative, target, right=True).clamp_(max=self.epoch_rows - 1)

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.arange(start, stop, device=device)


class Balanced:
    """A class among those present, all equally likely, then one of its rows, all equally likely."""

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
    """The weights as float64, or DataError with the first invalid one."""
    if weights.dim() != 1:
        raise DataError(f"draw: weights must be one number per row, got a tensor of shape {list(weights.shape)}")
    exact = weights.to(torch.float64)
    bad = (~torch.isfinite(exact) | (exact < 0)).nonzero()
    if len(bad):
        row = int(bad[0])
        raise DataError(f"draw: weights must be finite and 0 or more; row {row} has {float(exact[row]):g} ({len(bad)} rows)")
    if not exact.sum() > 0:
        raise DataError("draw: the weights are all 0, so no row can be drawn")
    return exact


class Sequential:
    """Rows in stored order, epoch after epoch."""

    def __init__(self, rows: int) -> None:
        self._epoch_rows = rows

    @property
    def epoch_rows(self) -> int:
        return self._epoch_rows

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.arange(start, stop, device=device).remainder_(self._epoch_rows)

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return floor_divide(torch.arange(start, stop, device=device), self._epoch_rows)
