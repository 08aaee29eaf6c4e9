"""A trained model that takes raw rows: it prepares them as in training, and gives results in the units of y."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flatout.base.errors import DataError
from flatout.data.fitted.fitted import Fitted
from flatout.data.others import other_batch
from flatout.data.source import Batch
from flatout.engine.precision import autocast
from flatout.objectives.objective import Objective


class PreparedModel(nn.Module):
    """`forward` returns the model's output: logits, or for regress values in the units of y. `predict`: columns as fo.predict.

    Both take one batch of raw rows:
    - arrays: x [rows, ...], in the format of the training data, not normalized;
    - photos: a list of the bytes of image files, or of uint8 arrays [height, width, 3] of any sizes;
    - tables: raw columns, such as {"age": [39, 50], "job": ["clerk", "cook"]}, a pyarrow.Table or a DataFrame;
    - tokens: ids [rows, length], or texts; of `sequences` also a list of rows of any lengths.
    Several inputs come by position in the order of the recipe's `inputs`, or as one mapping of columns by name.
    """

    def __init__(
        self, model: nn.Module, fitted: Fitted, objective: Objective, precision: Callable[[torch.device], str]
    ) -> None:
        """`precision` returns the precision to compute with on a device."""
        super().__init__()
        self.bare = model
        self.device_part = fitted.device  # a submodule, so that it moves with the model
        self._fitted, self._objective, self._precision = fitted, objective, precision

    def forward(self, *given: Any) -> Any:
        batch = self._prepared(*given)
        with autocast(self._precision(self._device), self._device):
            output = self._objective.inputs.call(self.bare, batch)
        return self._objective.in_units(output)

    @torch.no_grad()
    def predict(self, *given: Any) -> dict[str, Tensor]:
        """The columns of fo.predict, without the names of classes."""
        batch = self._prepared(*given)
        with autocast(self._precision(self._device), self._device):
            return self._objective.predict(self.bare, batch)

    @property
    def _device(self) -> torch.device:
        tensors = (*self.bare.parameters(), *self.bare.buffers())
        return tensors[0].device if tensors else torch.device("cpu")

    def _prepared(self, *given: Any) -> Batch:
        alone = len(given) == 1 and (self._fitted.host.kind != "arrays" or isinstance(given[0], Mapping))
        rows = other_batch(self._fitted, given[0] if alone else self._by_name(given))
        prepared: Batch = self.device_part({name: column.to(self._device) for name, column in rows.items()})
        return prepared

    def _by_name(self, given: Sequence[Any]) -> dict[str, Any]:
        """Columns by position: the inputs of the model if the data has them, else the columns that they are made from."""
        asked, there = self._objective.inputs.columns, self._fitted.schema
        names = asked if all(name in there for name in asked) else tuple(name for name in there if name != "y")
        if len(given) != len(names):
            raise DataError(f"the model takes {len(names)} inputs ({' and '.join(names)}), got {len(given)}")
        return dict(zip(names, given, strict=True))
