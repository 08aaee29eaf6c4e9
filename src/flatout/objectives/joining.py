"""A meter that looks at several batches together: a few operations on many rows instead of the same ones on each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flatout.objectives.inputs import Batch
from flatout.objectives.metrics import zeros
from flatout.objectives.objective import SharedMeter

_CELLS, _CELLS_ON_DEVICE = 1 << 20, 1 << 24
"""Of the output: 4 MB, which a CPU's cache holds; 64 MB on a device, where each launch costs as much as many rows."""
_LARGE, _LARGE_ON_DEVICE = 1 << 16, 1 << 22
"""A batch with so many cells gains nothing from waiting, and would be copied."""


class JoinedMeter:
    """For a meter whose figures are sums or rows, and that reads only `y` of a batch."""

    def __init__(self, inner: SharedMeter, device: torch.device) -> None:
        self.inner = inner
        self._device = device
        on_host = device.type == "cpu"
        self._most, self._large = (_CELLS, _LARGE) if on_host else (_CELLS_ON_DEVICE, _LARGE_ON_DEVICE)
        self._start()

    def _start(self) -> None:
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._cells = 0
        self._loss = zeros(self._device)
        self._weight: float | Tensor = 0.0

    def update(self, output: Any, loss_sum: Tensor, weight: float | Tensor, batch: Batch) -> None:
        target = batch.get("y")
        if not isinstance(output, Tensor) or target is None or output.numel() >= self._large or not output.dim():
            self.inner.update(output, loss_sum, weight, batch)
            return
        if self._outputs and not (_alike(output, self._outputs[0]) and _alike(target, self._targets[0])):
            self._look()
        # copies, because a captured graph writes its next batch into the same tensors
        self._outputs.append(output.detach().clone())
        self._targets.append(target.clone())
        self._loss += loss_sum.detach()
        self._weight = self._weight + (weight.to(self._loss.dtype) if isinstance(weight, Tensor) else weight)
        self._cells += output.numel()
        if self._cells >= self._most:
            self._look()

    def _look(self) -> None:
        if self._outputs:
            together = {"y": torch.cat(self._targets)}
            self.inner.update(torch.cat(self._outputs), self._loss, self._weight, together)
            self._start()

    def result(self) -> dict[str, float]:
        self._look()
        return self.inner.result()

    def collected(self) -> dict[str, Tensor]:
        self._look()
        return self.inner.collected()

    def put_together(self, shares: Sequence[Mapping[str, Tensor]]) -> None:
        self._start()
        self.inner.put_together(shares)


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape[1:] == other.shape[1:] and one.dtype == other.dtype and one.device == other.device
