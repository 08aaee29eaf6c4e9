"""A trained model that takes rows as the data has them: before it what was fitted on the data, after it the units of y."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flatout.base.errors import DataError
from flatout.data.data import Data
from flatout.data.keyed import Keys
from flatout.data.source import Batch
from flatout.data.transforms import Transform, apply
from flatout.engine.precision import autocast
from flatout.objectives.objective import Objective


class PreparedModel(nn.Module):
    """`forward` gives what the model gives: logits, or for regress values in the units of y. `predict`: columns as fo.predict.

    Both take one batch of rows as they are before they are prepared:
    - arrays: x [rows, ...], in the numbers and the format of the training data, not normalized;
    - photos: a list of uint8 arrays [height, width, 3] of any sizes, or an array [rows, height, width, 3];
    - tables: raw columns, such as {"age": [39, 50], "job": ["clerk", "cook"]}, a pyarrow.Table or a DataFrame;
    - tokens: ids [rows, length]; of `sequences` also a list of rows of any lengths.
    Several inputs come by position in the order of the recipe's `inputs`, or as one mapping of columns by name.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        objective: Objective,
        precision: Callable[[torch.device], str],
        read: Callable[[Any], Batch] | None = None,
    ) -> None:
        """`precision`: to compute with on a device. `read`: from what no tensor holds, such as words, to tensors."""
        super().__init__()
        self.bare = model
        self._steps = nn.ModuleList(step for step in data.prepare if isinstance(step, nn.Module))  # go where the model goes
        self._prepare: tuple[Transform, ...] = data.prepare
        self._schema = dict(data.train.schema)
        self._objective, self._precision, self._read = objective, precision, read

    def forward(self, *given: Any) -> Any:
        batch = self._prepared(*given)
        with autocast(self._precision(self._device), self._device):
            output = self._objective.inputs.call(self.bare, batch)
        return self._objective.in_units(output)

    @torch.no_grad()
    def predict(self, *given: Any) -> dict[str, Tensor]:
        """The columns of fo.predict, but for the names of classes."""
        batch = self._prepared(*given)
        with autocast(self._precision(self._device), self._device):
            return self._objective.predict(self.bare, batch)

    @property
    def _device(self) -> torch.device:
        tensors = (*self.bare.parameters(), *self.bare.buffers())
        return tensors[0].device if tensors else torch.device("cpu")

    def _prepared(self, *given: Any) -> Batch:
        batch = {name: _tensor(name, value).to(self._device) for name, value in self._columns(given).items()}
        rows = len(batch["start" if "start" in batch else next(iter(batch))])
        if not self._prepare:
            return batch
        numbers = torch.arange(rows, device=self._device)
        return apply(self._prepare, batch, Keys(0, torch.zeros_like(numbers), numbers))

    def _columns(self, given: Sequence[Any]) -> Mapping[str, Any]:
        one = given[0] if len(given) == 1 else None
        as_read = isinstance(one, Tensor | np.ndarray) or (isinstance(one, Mapping) and one.keys() <= self._schema.keys())
        if self._read is not None and one is not None and not as_read:
            return self._read(one)
        if isinstance(one, Mapping):
            return dict(one)
        if "pixels" in self._schema and one is not None:
            return _photos(one)
        names = self._names
        if len(given) != len(names):
            raise DataError(f"the model takes {' and '.join(names)}, {len(names)} in all, and got {len(given)}")
        return dict(zip(names, given, strict=True))

    @property
    def _names(self) -> tuple[str, ...]:
        """Columns by position: those that the model takes, where the data has them; else those that they are made of."""
        asked = self._objective.inputs.columns
        if all(name in self._schema for name in asked):
            return asked
        return tuple(name for name in self._schema if name != "y")


def _photos(given: Any) -> Batch:
    """End to end in one tensor of bytes, as photos are read."""
    photos = [_tensor("photo", photo) for photo in given]
    for photo in photos:
        if photo.dim() != 3 or photo.shape[-1] != 3 or photo.dtype != torch.uint8:
            came = f"{str(photo.dtype)[6:]} {list(photo.shape)}"
            raise DataError(f"a photo is uint8 [height, width, 3], red, green and blue, got {came}")
    sizes = torch.tensor([photo.numel() for photo in photos])
    return {
        "pixels": torch.cat([photo.reshape(-1) for photo in photos]),
        "start": sizes.cumsum(0) - sizes,
        "height": torch.tensor([photo.shape[0] for photo in photos]),
        "width": torch.tensor([photo.shape[1] for photo in photos]),
    }


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except TypeError as error:
        raise DataError(f"{name} must be numbers, got {type(value).__name__}: {error}") from error
