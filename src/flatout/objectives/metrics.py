"""Streaming metrics: sums stay on the device in float64 and are read once at the end. Counts are exact up to 2**53."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flatout.objectives.areas import areas_under_curve
from flatout.objectives.class_rows import ClassRows
from flatout.objectives.inputs import Batch

Sums = Mapping[str, Tensor | float]


class SumMeter:
    """Adds up what `measure` returns for each batch, the loss and its weight; `finish` computes metrics from the totals.
    `of_rows` returns the same from one pass over the logits."""

    def __init__(
        self,
        device: torch.device,
        measure: Callable[[Any, Batch], Sums],
        finish: Callable[[Mapping[str, float]], dict[str, float]],
        of_rows: Callable[[ClassRows], Mapping[str, float]] | None = None,
    ) -> None:
        self._device = device
        self._measure = measure
        self._finish = finish
        self._of_rows = of_rows
        self._totals: dict[str, Tensor] = {}
        self._known: dict[str, float] = {}  # of numbers that were never on a device

    def update(self, output: Any, loss_sum: Tensor, weight: float | Tensor, batch: Batch) -> None:
        self._add({"loss": loss_sum.detach(), "weight": weight})
        self._add(self._measure(output, batch))

    def look(self, rows: ClassRows, output: Any, batch: Batch) -> None:
        """As `update`, with the loss from the same pass."""
        self._add({"loss": rows.loss, "weight": rows.weight})
        self._add(self._measure(output, batch) if self._of_rows is None else self._of_rows(rows))

    def _add(self, found: Sums) -> None:
        for name, value in found.items():
            if not isinstance(value, Tensor):
                self._known[name] = self._known.get(name, 0.0) + value
                continue
            if name not in self._totals:
                self._totals[name] = zeros(self._device)
            self._totals[name] += value

    def result(self) -> dict[str, float]:
        found = dict(self._known)
        if self._totals:
            for name, value in zip(self._totals, torch.stack(list(self._totals.values())).tolist(), strict=True):
                found[name] = found.get(name, 0.0) + value
        return self._finish(found) if found else {}

    def collected(self) -> dict[str, Tensor]:
        known = {name: torch.tensor(value, dtype=accumulator(self._device)) for name, value in self._known.items()}
        both = {name: total + known[name] for name, total in self._totals.items() if name in known}
        return {**known, **self._totals, **both}

    def put_together(self, shares: Sequence[Mapping[str, Tensor]]) -> None:
        self._totals, self._known = {}, {}
        for share in shares:
            self._add({name: value.to(self._device) for name, value in share.items()})


def of_rows(rows: ClassRows) -> Mapping[str, float]:
    return {"correct": rows.correct, "count": rows.weight}


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
