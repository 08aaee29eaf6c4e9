"""The scalars of each step, kept on the device until a log point reads them all at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flatout.engine.sync import sync_point


@dataclass(frozen=True)
class Interval:
    """What the steps since the last log point did."""

    losses: list[float]
    weights: list[float]
    norms: list[float]

    @property
    def mean_loss(self) -> float | None:
        """Weighted over the steps whose loss was finite."""
        pairs = [(loss, weight) for loss, weight in zip(self.losses, self.weights, strict=True) if math.isfinite(loss)]
        whole = sum(weight for _, weight in pairs)
        return sum(loss * weight for loss, weight in pairs) / whole if whole else None

    def skipped(self, by_norm: bool) -> list[bool]:
        """Of each step, whether it changed nothing: its loss was no number, or its gradient norm where that decides."""
        watched = self.norms if by_norm and self.norms else self.losses
        return [not (math.isfinite(loss) and math.isfinite(seen)) for loss, seen in zip(self.losses, watched, strict=True)]

    @property
    def last_norm(self) -> float | None:
        return self.norms[-1] if self.norms else None


class Records:
    """Plain references while the step runs eagerly: no kernel, no copy, nothing to wait for."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._weights: list[Tensor | float] = []
        self._norms: list[Tensor] = []

    def add(self, loss: Tensor, weight: Tensor | float, norm: Tensor | None) -> None:
        self._losses.append(loss)
        self._weights.append(weight)
        if norm is not None:
            self._norms.append(norm)

    def drain(self) -> Interval:
        with sync_point():
            losses = _read(self._losses)
            norms = _read(self._norms)
            weights = _read(self._weights)
        self._losses, self._weights, self._norms = [], [], []
        return Interval(losses, weights, norms)


class GraphRecords:
    """The same in fixed places on the device, for a step that is replayed: each replay writes the next slot."""

    def __init__(self, device: torch.device, slots: int, *, compiled: bool = False) -> None:
        self.slots = slots
        self._write = torch.compile(_write, dynamic=False) if compiled else _write
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._columns: dict[str, Tensor | float] = {}
        self.filled = 0

    def add(self, loss: Tensor, weight: Tensor | float, norm: Tensor | None) -> None:
        scalars = {"loss": loss, "weight": weight} | ({} if norm is None else {"norm": norm})
        kept = {name: scalar.detach() for name, scalar in scalars.items() if isinstance(scalar, Tensor)}
        for name, scalar in scalars.items():
            if name not in kept:  # known from shapes, so the same in every replay
                self._columns[name] = scalar
        self._write([self._column(name, scalar) for name, scalar in kept.items()], list(kept.values()), self.slot)

    def _column(self, name: str, like: Tensor) -> Tensor:
        column = self._columns.get(name)
        if not isinstance(column, Tensor):
            self._columns[name] = column = torch.zeros(self.slots, dtype=like.dtype, device=like.device)
        return column

    def replayed(self) -> None:
        self.filled += 1

    def reset(self) -> None:
        self.slot.zero_()
        self.filled = 0

    def drain(self) -> Interval:
        with sync_point():
            losses, weights, norms = (self._values(name) for name in ("loss", "weight", "norm"))
        self.reset()
        return Interval(losses, weights, norms)

    def _values(self, name: str) -> list[float]:
        column = self._columns.get(name)
        if isinstance(column, Tensor):
            return [float(value) for value in column[: self.filled].tolist()]
        return [] if column is None else [column] * self.filled


def _write(columns: Sequence[Tensor], scalars: Sequence[Tensor], slot: Tensor) -> None:
    for column, scalar in zip(columns, scalars, strict=True):
        column.index_copy_(0, slot, scalar.reshape(1))
    slot.add_(1)


def _read(scalars: Sequence[Tensor | float]) -> list[float]:
    """All at once: one wait for the device, not one a scalar."""
    tensors = [scalar for scalar in scalars if isinstance(scalar, Tensor)]
    if len(tensors) < len(scalars):
        return [float(scalar) for scalar in scalars]
    return [float(value) for value in torch.stack(tensors).tolist()] if tensors else []
