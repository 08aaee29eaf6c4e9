"""The scalars of each step, kept on the device until a log point reads them all at once."""

from __future__ import annotations

import math
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

    @property
    def nonfinite(self) -> int:
        return sum(not math.isfinite(loss) for loss in self.losses)

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
            weights = [float(weight) for weight in self._weights]
        self._losses, self._weights, self._norms = [], [], []
        return Interval(losses, weights, norms)


class GraphRecords:
    """The same in fixed places on the device, for a step that is replayed: each replay writes the next slot."""

    def __init__(self, device: torch.device, slots: int) -> None:
        self.slots = slots
        self._values = torch.zeros(slots, 3, device=device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._filled = 0
        self._has_norm = False

    def add(self, loss: Tensor, weight: Tensor | float, norm: Tensor | None) -> None:
        self._has_norm = norm is not None
        mass = weight if isinstance(weight, Tensor) else torch.full_like(loss, weight)
        row = torch.stack([loss, mass.to(loss.dtype), norm.to(loss.dtype) if norm is not None else mass.to(loss.dtype)])
        self._values.index_copy_(0, self._slot, row.unsqueeze(0))
        self._slot.add_(1)

    def replayed(self) -> None:
        self._filled += 1

    @property
    def full(self) -> bool:
        return self._filled >= self.slots

    def reset(self) -> None:
        self._slot.zero_()
        self._filled = 0

    def drain(self) -> Interval:
        with sync_point():
            values = self._values[: self._filled].tolist()
        self.reset()
        norms = [row[2] for row in values] if self._has_norm else []
        return Interval([row[0] for row in values], [row[1] for row in values], norms)


def _read(scalars: list[Tensor]) -> list[float]:
    return [float(value) for value in torch.stack(scalars).tolist()] if scalars else []
