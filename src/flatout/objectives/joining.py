"""A meter that looks at several batches together: a few operations on many rows instead of the same ones on each batch.

The loss is part of it: `look` computes it for all of them at once, together with the metrics where both need the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flatout.objectives.class_rows import ClassRows, Scratch
from flatout.objectives.inputs import Batch
from flatout.objectives.metrics import zeros
from flatout.objectives.objective import Meter, Objective, SharedMeter

_CELLS, _CELLS_ON_DEVICE = 1 << 20, 1 << 24
"""Of the output: 4 MB, which a CPU's cache holds; 64 MB on a device, where each launch costs as much as many rows."""
_LARGE, _LARGE_ON_DEVICE = 1 << 17, 1 << 22
"""A batch with so many cells gains nothing from waiting, and would be copied."""


class JoinedMeter:
    """For a meter whose figures are sums or rows, and that reads only `y` of a batch. `of`: the objective that made it."""

    def __init__(self, inner: SharedMeter, device: torch.device, of: Objective | None = None) -> None:
        self.inner, self.of = inner, of
        self._device, self._scratch = device, Scratch()
        self._look_at: Callable[[ClassRows, Any, Batch], None] | None = getattr(inner, "look", None)
        on_host = device.type == "cpu"
        self._most, self._large = (_CELLS, _LARGE) if on_host else (_CELLS_ON_DEVICE, _LARGE_ON_DEVICE)
        self._kind: object = None  # of what waits
        self._outputs = self._targets = torch.empty(0)
        self._cells = 0  # of a row
        self._start()

    def _start(self) -> None:
        self._rows = 0
        self._loss: Tensor | None = None  # None: it is not known yet
        self._weight: float | Tensor = 0.0

    def update(self, output: Any, loss_sum: Tensor, weight: float | Tensor, batch: Batch) -> None:
        if not self._keeps(output, batch, "with their loss"):
            self.inner.update(output, loss_sum, weight, batch)
            return
        if self._loss is None:
            self._loss = zeros(self._device)
        self._loss += loss_sum.detach()
        self._weight = self._weight + (weight.to(self._loss.dtype) if isinstance(weight, Tensor) else weight)
        if self._is_full():
            self._flush()

    def look(self, output: Any, batch: Batch) -> None:
        """As `update`, for a loss that is yet to be computed: by the objective that made this meter."""
        assert self.of is not None
        if not self.of.joins(batch):
            self.update(output, *self.of.loss(output, batch), batch)
        elif not self._keeps(output, batch, "without their loss"):
            for part, own in self._parts(output, batch):
                self._measure(part, own)
        elif self._is_full():
            self._flush()

    def _keeps(self, output: Any, batch: Batch, how: str) -> bool:
        """Whether the batch now waits for others. It does not if it is large, or not a tensor with a row for each of y."""
        target = batch.get("y")
        if not isinstance(output, Tensor) or target is None or not output.dim() or not target.dim():
            return False
        if output.numel() >= self._large or not 0 < len(target) == len(output):
            return False
        kind = (how, output.shape[1:], output.dtype, output.device, target.shape[1:], target.dtype, target.device)
        if kind != self._kind:
            self._flush()
            self._kind, self._cells = kind, output[0].numel()
            self._outputs, self._targets = output[:0], target[:0]
        begin, end = self._rows, self._rows + len(target)
        if end > len(self._outputs):
            self._grow(end)
        # copies, because a captured graph writes its next batch into the same tensors
        self._outputs[begin:end] = output.detach()
        self._targets[begin:end] = target
        self._rows = end
        return True

    def _parts(self, output: Any, batch: Batch) -> Iterable[tuple[Any, Batch]]:
        """On a CPU, parts that its cache holds, and that need little memory."""
        target = batch.get("y")
        if self._device.type != "cpu" or not isinstance(output, Tensor) or output.numel() <= 2 * self._most or target is None:
            return [(output, batch)]
        if not target.dim() or len(target) != len(output):
            return [(output, batch)]
        rows = max(1, self._most // output[0].numel())
        return ((part, {"y": own}) for part, own in zip(output.split(rows), target.split(rows), strict=True))

    def _grow(self, rows: int) -> None:
        """Room for so many rows and for others: on a CPU for all that may wait, as memory that is not used costs nothing."""
        most = self._most // max(1, self._cells) + rows
        places = most if self._device.type == "cpu" else min(most, 4 * rows)
        outputs, targets = (one.new_empty((places, *one.shape[1:])) for one in (self._outputs, self._targets))
        outputs[: self._rows], targets[: self._rows] = self._outputs[: self._rows], self._targets[: self._rows]
        self._outputs, self._targets = outputs, targets

    def _is_full(self) -> bool:
        return self._rows * self._cells >= self._most

    def _flush(self) -> None:
        if self._rows:
            output, together = self._outputs[: self._rows], {"y": self._targets[: self._rows]}
            loss, weight = self._loss, self._weight
            self._start()
            if loss is None:
                self._measure(output, together)
            else:
                self.inner.update(output, loss, weight, together)

    def _measure(self, output: Any, batch: Batch) -> None:
        assert self.of is not None
        rows = None if self._look_at is None else self.of.rows(output, batch, self._scratch)
        if rows is None or self._look_at is None:
            self.inner.update(output, *self.of.loss(output, batch), batch)
        else:
            self._look_at(rows, output, batch)

    def result(self) -> dict[str, float]:
        self._flush()
        return self.inner.result()

    def collected(self) -> dict[str, Tensor]:
        self._flush()
        return self.inner.collected()

    def put_together(self, shares: Sequence[Mapping[str, Tensor]]) -> None:
        self._start()
        self.inner.put_together(shares)


def adder(objective: Objective, meter: Meter) -> Callable[[Any, Batch], None]:
    """A function that adds a model's output for a batch to the meter, with its loss."""
    if type(meter) is JoinedMeter and meter.of is objective:  # a meter may be that of another objective, with another loss
        return meter.look
    return lambda output, batch: meter.update(output, *objective.loss(output, batch), batch)
