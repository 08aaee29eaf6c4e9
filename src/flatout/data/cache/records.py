"""Rows taken apart for keeping: the fixed columns of a row are one record of bytes, its ragged ones are runs of items.

Ragged columns of one source have equal numbers of items a row and share one column `start`, which says where in a batch
each row begins. It depends on who else is in the batch, so it is never kept: it is made anew from the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.files.room import empty
from flatout.data.offers import Take
from flatout.data.source import Batch, Column, Schema

START = "start"
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class RecordLayout:
    """`fixed` columns have one shape for all rows, `ragged` ones lie flat."""

    fixed: Mapping[str, Column]
    ragged: Mapping[str, Column]

    @staticmethod
    def of(schema: Schema) -> RecordLayout:
        ragged = {name: column for name, column in schema.items() if column.ragged is not None}
        fixed = {name: column for name, column in schema.items() if column.ragged is None}
        if ragged:
            start = fixed.pop(START, None)
            if start != Column(torch.int64, ()):
                came = "none" if start is None else f"{start.dtype} of shape {list(start.shape)}"
                names = ", ".join(ragged)
                raise UsageError(
                    f"ragged columns ({names}) need a column {START!r}, one int64 a row, in the schema; got {came}"
                )
        return RecordLayout(fixed, ragged)

    @cached_property
    def record_bytes(self) -> int:
        return sum(column.row_bytes for column in self.fixed.values())

    @cached_property
    def item_bytes(self) -> int:
        """One item of every ragged column."""
        return sum(column.dtype.itemsize for column in self.ragged.values())

    @cached_property
    def row_bytes(self) -> float:
        """A row as it is kept, on average."""
        mean = max((column.ragged or 0.0 for column in self.ragged.values()), default=0.0)
        return self.record_bytes + mean * self.item_bytes

    def sizes(self, batch: Batch, rows: int) -> Array:
        """The items of each row of a batch of this layout; DataError when it is not one."""
        expected = {*self.fixed, *self.ragged, *([START] if self.ragged else ())}
        if batch.keys() != expected:
            raise DataError(f"the source read columns {', '.join(sorted(batch))}; its schema has {', '.join(sorted(expected))}")
        for name, column in self.fixed.items():
            _check(name, batch[name], column.dtype, (rows, *column.shape))
        if not self.ragged:
            return np.zeros(rows, np.int64)
        _check(START, batch[START], torch.int64, (rows,))
        lengths = {name: batch[name].numel() for name in self.ragged}
        for name, column in self.ragged.items():
            _check(name, batch[name], column.dtype, (lengths[name],))
        items = next(iter(lengths.values()))
        sizes = np.diff(batch[START].numpy(), append=items)
        if len(set(lengths.values())) > 1 or (rows == 0 and items) or (sizes < 0).any() or (rows and int(batch[START][0])):
            listed = ", ".join(f"{name} has {length} items" for name, length in lengths.items())
            raise DataError(f"ragged rows must lie end to end in the order they were asked for, from 0 on: {START!r} does not "
                            f"rise from 0 to the end ({listed})")  # fmt: skip
        return sizes

    def records(self, batch: Batch, picked: Tensor) -> Array:
        """uint8 [picked, record_bytes], a copy."""
        count = len(picked)
        records = np.empty((count, self.record_bytes), np.uint8)
        begin = 0
        for name, column in self.fixed.items():
            end = begin + column.row_bytes
            records[:, begin:end] = bytes_of(batch[name].index_select(0, picked)).reshape(count, column.row_bytes)
            begin = end
        return records

    def columns(self, records: Array, take: Take | None = None) -> Batch:
        """The fixed columns of records."""
        found: Batch = {}
        begin = 0
        for name, column in self.fixed.items():
            end = begin + column.row_bytes
            own = empty((len(records), *column.shape), column.dtype) if take is None else take(name, len(records))
            out = own if own.is_contiguous() else torch.empty_like(own, memory_format=torch.contiguous_format)
            bytes_of(out).reshape(len(records), column.row_bytes)[:] = records[:, begin:end]
            found[name] = own if own is out else own.copy_(out)
            begin = end
        return found

    def flat(self, sizes: Array, take: Take | None = None) -> Batch:
        """`start`, and room for the ragged columns, of rows of these sizes."""
        if not self.ragged:
            return {}
        start, items = torch.from_numpy(starts(sizes)), int(sizes.sum())
        if take is None:
            return {**{name: empty((items,), column.dtype) for name, column in self.ragged.items()}, START: start}
        return {**{name: take(name, items) for name in self.ragged}, START: take(START, len(start)).copy_(start)}


def starts(sizes: Array) -> Array:
    """Where each row begins when rows of these sizes lie end to end."""
    ends: Array = np.cumsum(sizes, dtype=np.int64)
    return ends - sizes


def bytes_of(tensor: Tensor) -> Array:
    """A flat view; of a tensor that is not contiguous, a copy."""
    content: Array = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return content


def plain(flat: Tensor) -> Array:
    """A view as integers of equal width: NumPy knows no bfloat16."""
    width = flat.dtype.itemsize
    array: Array = (flat.view(_INTEGERS[width]) if width in _INTEGERS else flat).numpy()
    return array


def _check(name: str, came: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if came.dtype != dtype or tuple(came.shape) != shape:
        raise DataError(
            f"the source read column {name!r} as {came.dtype} of shape {list(came.shape)}; "
            f"by its schema it is {dtype} of shape {list(shape)}"
        )
