"""The part that runs on the device: the steps of evaluation from rows to a batch, as one module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Transform, apply
from flatout.data.transforms import parse_transforms


class DevicePart(nn.Module):
    """Normalizes, crops, fills and scales. Its JSON gives the same tensors again, exactly."""

    def __init__(self, steps: Sequence[Transform] = ()) -> None:
        super().__init__()
        self.steps = tuple(steps)
        self._modules_of_steps = nn.ModuleList(step for step in steps if isinstance(step, nn.Module))  # move along

    def forward(self, rows: Batch) -> Batch:
        if not self.steps:
            return dict(rows)
        first = rows["start" if "start" in rows else next(iter(rows))]
        numbers = torch.arange(first.shape[0], device=first.device)  # `len` would fix the number of rows in an export
        return apply(self.steps, rows, Keys(0, torch.zeros_like(numbers), numbers))

    def to_json(self) -> list[Any]:
        return [step.written() for step in self.steps]

    @classmethod
    def from_json(cls, written: Sequence[Any]) -> DevicePart:
        return cls([_step(one) for one in written])


def _step(written: Any) -> Transform:
    if isinstance(written, Mapping) and "table" in written:
        from flatout.data.fitted.table_features import TableFeatures  # loads only if used

        return TableFeatures(**written["table"])
    return parse_transforms([written])[0]
