"""Raw rows to the tensors that a program takes, with what was fitted in training.

    preparer = Preparer(model)
    preparer.row({"age": 39, "job": "cook"})            # one row of a table
    preparer.rows({"age": [39, 50], "job": [...]})      # many rows, as columns by name

Both return columns by the names of the program's inputs: NumPy arrays, or for one row their bytes. DataError names what can't
be prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.fitted.one_row import OneRow
from flatout.data.fitted.table_rows import TableHost
from flatout.packaging.answering import Preparation
from flatout.packaging.ports import Port
from flatout.serving.asking import Array, ServedModel
from flatout.serving.front.packed_columns import PackedColumns, PlacedTensor
from flatout.serving.records import RowLayout, numpy_type

_CODES = {"float32": "f", "float64": "d", "int32": "i", "int64": "q"}  # of the module struct
_FEW_ROWS = 512  # more are prepared faster as columns


class Preparer:
    def __init__(self, model: ServedModel) -> None:
        self._fitted, self._ports = model.package.fitted, model.inputs
        self._before = Preparation(self._fitted).before
        host = self._fitted.host
        self._one = OneRow(host) if isinstance(host, TableHost) else None
        self._types = {port.name: np.dtype(port.dtype) for port in self._ports} if self._one is not None else {}
        self._record: Struct | None = None
        if self._one is not None and all(port.dtype in _CODES and len(port.shape) == 2 for port in self._ports):
            fields = RowLayout.of(self._ports).fields
            # "0q" begins the next field at a multiple of 8 bytes, as records have it
            self._record = Struct("@" + "0q".join(f"{one.shape[0]}{_CODES[str(one.dtype)]}" for one in fields))
            self._placed = tuple(PlacedTensor(one.name, one.dtype, one.start, (1, *one.shape), None, None) for one in fields)

    def row(self, row: Mapping[str, Any]) -> dict[str, Array] | PackedColumns:
        made = None if self._one is None else self._one.encode(row)
        if made is None:
            return self._many([row])
        if self._record is not None:
            try:
                record = self._record.pack(*[value for name in self._types for value in made[name]])
            except (StructError, OverflowError):  # NumPy says what is wrong
                pass
            else:
                return PackedColumns(self._placed, record, record)
        return {name: np.array([made[name]], dtype) for name, dtype in self._types.items()}

    def rows(self, raw: Any) -> dict[str, Array]:
        """`raw` as the host part of the model's data takes it."""
        few = None if self._one is None else self._few(raw)
        return self._many(raw) if few is None else few

    def _few(self, raw: Any) -> dict[str, Array] | None:
        """A few rows of a table, one by one; None if they need the way for many."""
        assert self._one is not None
        if isinstance(raw, Mapping):
            lengths = {len(column) if isinstance(column, list | tuple | np.ndarray) else 0 for column in raw.values()}
            if len(lengths) != 1 or not 0 < min(lengths) <= _FEW_ROWS:
                return None
            columns = [column.tolist() if isinstance(column, np.ndarray) else column for column in raw.values()]
            rows = [dict(zip(raw, values, strict=True)) for values in zip(*columns, strict=True)]
        elif isinstance(raw, list) and 0 < len(raw) <= _FEW_ROWS and all(isinstance(row, Mapping) for row in raw):
            rows = raw
        else:
            return None
        made = [self._one.encode(row) for row in rows]
        if None in made:
            return None
        return {name: np.array([one[name] for one in made if one is not None], dtype) for name, dtype in self._types.items()}

    def _many(self, raw: Any) -> dict[str, Array]:
        batch = self._fitted.rows(raw)
        if self._before.steps:
            with torch.inference_mode():
                batch = self._before(batch)
        for port in self._ports:
            if port.name not in batch:
                raise DataError(f"the rows have no column {port.name!r}, which the model takes; they have {', '.join(batch)}")
        return {port.name: _column(port, batch[port.name]) for port in self._ports}


def _column(port: Port, column: Tensor) -> Array:
    """In the type of the program. DataError for fractions where it takes whole numbers, and for numbers beyond its type."""
    if port.dtype == "bfloat16":
        return column.to(torch.bfloat16).view(torch.uint16).numpy()  # its bits
    given, wanted = column.numpy(), numpy_type(port.dtype)
    if given.dtype == wanted:
        return given
    if given.dtype.kind == "f" and wanted.kind != "f":
        raise DataError(f"column {port.name!r} holds whole numbers ({port.dtype}), got {given.dtype}")
    made = given.astype(wanted)
    if wanted.kind != "f" and b"\1" in (made != given).tobytes():
        row, *place = np.argwhere(made != given)[0].tolist()
        raise DataError(f"row {row}: column {port.name!r} is {port.dtype}, which can't hold {given[(row, *place)]}")
    return made
