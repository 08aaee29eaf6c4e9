"""Streaming metrics: sums stay on the device in float64 and are read once at the end. Counts are exact up to 2**53."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flatout.objectives.areas import areas_under_curve
from flatout.objectives.inputs import Batch

Sums = Mapping[str, Tensor | float]


class SumMeter:
    """Adds up what `measure` returns for each batch, the loss and its weight; `finish` computes metrics from the totals."""

    def __init__(
        self,
        device: torch.device,
        measure: Callable[[Any, Batch], Sums],
        finish: Callable[[Mapping[str, float]], dict[str, float]],
    ) -> None:
        self._device = device
        self._measure = measure
        self._finish = finish
        self._totals: dict[str, Tensor] = {}

    def update(self, output: Any, loss_sum: Tensor, weight: float | Tensor, batch: Batch) -> None:
        found: Sums = {"loss": loss_sum.detach(), "weight": weight, **self._measure(output, batch)}
        for name, value in found.items():
            if name not in self._totals:
                self._totals[name] = zeros(self._device)
            self._totals[name] += value

    def result(self) -> dict[str, float]:
        if not self._totals:
            return {}
        values = torch.stack(list(self._totals.values())).tolist()
        return self._finish(dict(zip(self._totals, values, strict=True)))

    def collected(self) -> dict[str, Tensor]:
        return dict(self._totals)

    def put_together(self, shares: Sequence[Mapping[str, Tensor]]) -> None:
        self._totals = {}
        for share in shares:
            for name, value in share.items():
                if name not in self._totals:
                    self._totals[name] = zeros(self._device)
                self._totals[name] += value.to(self._device)


class Spread:
    """Sum of squared deviations from the mean per column, merged batch by batch (Chan et al.) to avoid cancellation."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def update(self, rows: Tensor) -> None:
        values = rows.to(accumulator(rows.device))
        mean = values.mean(0)
        self.merge(len(values), mean, (values - mean).square().sum(0))

    def merge(self, count: int, mean: Tensor, squares: Tensor) -> None:
        """Add the statistics of other rows."""
        if self._mean is None or self._squares is None:
            self.count, self._mean, self._squares = count, mean, squares
            return
        total, apart = self.count + count, mean - self._mean
        self._squares = self._squares + squares + apart.square() * (self.count * count / total)
        self._mean = self._mean + apart * (count / total)
        self.count = total

    @property
    def mean(self) -> Tensor:
        assert self._mean is not None, "call update first"
        return self._mean

    @property
    def squares(self) -> Tensor:
        assert self._squares is not None, "call update first"
        return self._squares


def area_under_curve(scores: Tensor, labels: Tensor) -> Tensor:
    """Exact ROC AUC; tied scores get their mean rank. NaN if there is only one class."""
    return areas_under_curve(scores[:, None], labels[:, None])[0]


def r_squared(residual: Tensor, spread: Tensor) -> Tensor:
    """Mean over columns. For a constant column, 1 if predicted exactly, else 0, as in scikit-learn."""
    share = 1 - residual / spread
    constant = torch.where(residual == 0, 1.0, residual * 0).to(share.dtype)  # a NaN stays one
    return torch.where(spread == 0, constant, share).mean()


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def zeros(device: torch.device) -> Tensor:
    return torch.zeros((), dtype=accumulator(device), device=device)


def accumulator(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no float64
