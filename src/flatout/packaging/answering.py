"""The module that is exported: tensors of prepared rows in, the columns of `predict` out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flatout.data.augment.crops import CenterCrop
from flatout.data.fitted import Fitted
from flatout.data.fitted.device import DevicePart
from flatout.data.source import Batch, Column, describe_all
from flatout.objectives.objective import Objective


class Preparation:
    """The device part in two: `before` makes photos of any size one size, and `inside` belongs to the program."""

    def __init__(self, fitted: Fitted) -> None:
        steps = fitted.device.steps
        crops = [place for place, step in enumerate(steps) if isinstance(step, CenterCrop)]
        cut = crops[-1] + 1 if crops else 0
        self.before, self.inside = DevicePart(steps[:cut]), DevicePart(steps[cut:])
        self._schema = fitted.schema

    @property
    def columns(self) -> dict[str, Column]:
        """The columns between the two: the inputs of the program."""
        described = describe_all(self.before.steps, self._schema)
        return {name: column for name, column in described.items() if name != "y"}


class Answering(nn.Module):
    """`forward` takes the columns `names` by position and returns the columns of the objective's predictions."""

    def __init__(self, model: nn.Module, inside: DevicePart, objective: Objective, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inside = model, inside
        self._objective, self._names = objective, tuple(names)

    def forward(self, *columns: Tensor) -> dict[str, Tensor]:
        rows: Batch = dict(zip(self._names, columns, strict=True))
        return self._objective.predict(self.model, self.inside(rows))

    @torch.no_grad()
    def answers(self, rows: Batch) -> dict[str, Tensor]:
        return self(*(rows[name] for name in self._names))  # type: ignore[no-any-return]
