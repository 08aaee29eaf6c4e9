"""The host part of arrays and datasets: columns of numbers, in the layout that the model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.checks import check_finite
from flatout.data.fitted.host import RawInput
from flatout.data.fitted.tensors import check_ids, plain_type, to_tensor
from flatout.data.source import Batch

_LAYOUT_DIMS = {"hw": 3, "hwc": 4, "chw": 4}


@dataclass(frozen=True)
class ArrayHost:
    """`columns` has the type and row shape of each column, after `layout`; with a `vocabulary`, x holds token ids."""

    columns: Mapping[str, tuple[str, tuple[int, ...]]]
    layout: str | None = None
    class_names: tuple[str, ...] | None = None
    vocabulary: int | None = None

    kind: ClassVar[str] = "arrays"

    @property
    def inputs(self) -> tuple[RawInput, ...]:
        kind = "array" if self.vocabulary is None else "tokens"
        kinds = {name: kind if name == "x" else "array" for name in self.columns if name != "y"}
        return tuple(RawInput(name, kinds[name], *self._given(name)) for name in kinds)

    def rows(self, raw: Any) -> Batch:
        """x, or columns by name, y too if it is given. Other columns are ignored."""
        given = raw if isinstance(raw, Mapping) else {"x": raw}
        known = {name: column for name, column in given.items() if name in self.columns}
        if not known.keys() - {"y"}:
            wanted = " or ".join(repr(name) for name in self.columns if name != "y")
            raise DataError(f"no column {wanted}, which the model was trained with; got {', '.join(map(str, given)) or 'none'}")
        batch = {name: self._column(name, column) for name, column in known.items()}
        lengths = {name: len(column) for name, column in batch.items()}
        if len(set(lengths.values())) > 1:
            raise DataError("columns differ in length: " + ", ".join(f"{name} has {rows}" for name, rows in lengths.items()))
        if not next(iter(lengths.values())):
            raise DataError("the data has no rows")
        return batch

    def _column(self, name: str, given: Any) -> Tensor:
        if name == "y":
            return targets_of(given, self.class_names or ())
        # a tensor stays on its device and keeps its gradient
        tensor = plain_type(given) if isinstance(given, Tensor) else to_tensor(given, name)
        if tensor.dim() == 0:
            raise DataError(f"column {name!r} is one number; expected an array with a row for each sample")
        if name == "x":
            tensor = self._arranged(tensor)
        self._check_shape(name, tensor)
        if len(tensor):
            check_finite(tensor.detach(), name)
        if name == "x" and self.vocabulary is not None:
            check_ids(tensor, self.vocabulary, name)
        return tensor

    def _arranged(self, x: Tensor) -> Tensor:
        """x in the layout of the training data. Rows that have the shape of the model already stay as they are."""
        if self.layout is None or x.dim() != _LAYOUT_DIMS[self.layout]:
            return x
        arranged = arrange(x, self.layout)
        return arranged if tuple(arranged.shape[1:]) == self.columns["x"][1] else x

    def _check_shape(self, name: str, tensor: Tensor) -> None:
        wanted, came = self._given(name)[1], tuple(tensor.shape[1:])
        own = self.columns[name][1]
        shorter = self.vocabulary is not None and len(came) == len(own) == 1 and 0 < came[0] <= own[0]
        if came != own and not (name == "x" and shorter):
            raise DataError(f"a row of {name} is {list(came)}, and {list(wanted)} in what the model was trained on")

    def _given(self, name: str) -> tuple[str, tuple[int, ...]]:
        dtype, shape = self.columns[name]
        return dtype, (*shape[1:], shape[0]) if name == "x" and self.layout == "hwc" else shape

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in self.columns.items()},
            "layout": self.layout,
            "class_names": None if self.class_names is None else list(self.class_names),
            "vocabulary": self.vocabulary,
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> ArrayHost:
        names = written["class_names"]
        return cls(
            {name: (column["dtype"], tuple(column["shape"])) for name, column in written["columns"].items()},
            written["layout"],
            None if names is None else tuple(names),
            written["vocabulary"],
        )


def arrange(x: Tensor, layout: str | None) -> Tensor:
    if layout is None:
        return x.contiguous()
    if layout not in _LAYOUT_DIMS:
        raise DataError(f"layout is 'hw', 'hwc' or 'chw', got {layout!r}")
    if x.dim() != _LAYOUT_DIMS[layout]:
        dims = _LAYOUT_DIMS[layout]
        raise DataError(f"layout={layout!r} needs x of {dims} dimensions, rows first; x has shape {list(x.shape)}")
    return (x.permute(0, 3, 1, 2) if layout == "hwc" else x).contiguous()


def as_words(given: Any) -> Tensor | np.ndarray[Any, Any]:
    """Text that pandas or a list holds as Python objects becomes text of NumPy's; everything else stays what it is."""
    values = given if isinstance(given, Tensor) else np.asarray(given)
    is_text = isinstance(values, np.ndarray) and values.dtype == object and all(isinstance(one, str) for one in values.flat)
    return values.astype(str) if is_text else values  # type: ignore[union-attr]


def targets_of(given: Any, names: Sequence[str], part: str = "") -> Tensor:
    """Integers as int64; words as their place in `names`, which is sorted."""
    words = as_words(given)
    if isinstance(words, np.ndarray) and words.dtype.kind in "US":
        words = words.astype(str)
        unknown = ~np.isin(words, names)
        if unknown.any():
            row = int(unknown.argmax())
            raise DataError(f"{part}y: row {row} has label {str(words[row])!r}, which no training row has")
        return torch.from_numpy(np.searchsorted(np.array(names), words).astype(np.int64))
    tensor = to_tensor(words, "y")
    return tensor if tensor.is_floating_point() else tensor.to(torch.int64)
