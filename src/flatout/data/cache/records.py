"""The form in which rows are kept: fixed columns as NumPy records, ragged columns as runs of items.

All ragged columns of a source have the same number of items per row and share one column `start`: where each row begins in the
batch. `start` depends on the batch, so it is never kept; it is computed again from the sizes.
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
_NUMPY = {1: "u1", 2: "i2", 4: "i4", 8: "i8", 16: "c16"}
LARGE_BYTES = 4 << 10  # rows of a column from here on are copied one by one, without a temporary array of all

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class RecordLayout:
    """`fixed` columns have the same shape in every row; `ragged` columns are stored flat."""

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
                    f"ragged columns ({names}) need a column {START!r}, one int64 per row, in the schema; got {came}"
                )
        return RecordLayout(fixed, ragged)

    @cached_property
    def record(self) -> np.dtype[Any]:
        """The fixed columns of a row, packed. Integers stand for all types of the same width: NumPy has no bfloat16."""
        return np.dtype([(name, _NUMPY[column.dtype.itemsize], column.shape) for name, column in self.fixed.items()])

    @cached_property
    def record_bytes(self) -> int:
        return self.record.itemsize

    @cached_property
    def item_bytes(self) -> int:
        """One item of every ragged column."""
        return sum(column.dtype.itemsize for column in self.ragged.values())

    @cached_property
    def row_bytes(self) -> float:
        """Average size of a stored row."""
        mean = max((column.ragged or 0.0 for column in self.ragged.values()), default=0.0)
        return self.record_bytes + mean * self.item_bytes

    def sizes(self, batch: Batch, rows: int) -> Array:
        """Items of each row of a batch. DataError when the batch does not have this layout."""
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
            raise DataError(
                f"ragged rows must follow each other in the order they were asked for, starting at 0; {START!r} does not "
                f"rise from 0 to the number of items ({listed})"
            )
        return sizes

    def records(self, batch: Batch, picked: Array) -> Array:
        """A copy of the fixed columns of these rows of a batch: one record per row."""
        records = np.empty(len(picked), self.record)
        for name in self.fixed:
            pick(records[name], slice(None), plain(batch[name]), picked)
        return records

    def room(self, rows: int, take: Take | None = None) -> Batch:
        """Empty tensors for the fixed columns."""
        if take is None:
            return {name: empty((rows, *column.shape), column.dtype) for name, column in self.fixed.items()}
        return {name: take(name, rows) for name in self.fixed}

    def flat(self, sizes: Array, take: Take | None = None) -> Batch:
        """`start` of rows of these sizes, and empty tensors for their ragged columns."""
        if not self.ragged:
            return {}
        start, items = torch.from_numpy(starts(sizes)), int(sizes.sum())
        if take is None:
            return {**{name: empty((items,), column.dtype) for name, column in self.ragged.items()}, START: start}
        return {**{name: take(name, items) for name in self.ragged}, START: take(START, len(start)).copy_(start)}

    def content(self, batch: Batch) -> Array:
        """All bytes of a batch as they are kept, uint8."""
        rows = len(next(iter(batch.values()))) if not self.ragged else len(batch[START])
        flat = [bytes_of(batch[name]) for name in self.ragged]
        return np.concatenate([record_content(self.records(batch, np.arange(rows))), *flat])


def pick(target: Array, places: Array | slice, values: Array, numbers: Array) -> None:
    """target[places] = values[numbers]"""
    if values[:1].nbytes < LARGE_BYTES:
        target[places] = values[numbers]
        return
    wanted = range(len(numbers)) if isinstance(places, slice) else places.tolist()
    for place, number in zip(wanted, numbers.tolist(), strict=True):
        target[place] = values[number]


def record_content(records: Array) -> Array:
    """The bytes of records, a view."""
    return records.view(np.uint8).reshape(-1) if records.dtype.itemsize else np.zeros(0, np.uint8)


def starts(sizes: Array) -> Array:
    """Where each row begins when rows of these sizes follow each other."""
    ends: Array = np.cumsum(sizes, dtype=np.int64)
    return ends - sizes


def bytes_of(tensor: Tensor) -> Array:
    """A flat view; a copy if the tensor is not contiguous."""
    content: Array = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return content


def plain(tensor: Tensor) -> Array:
    """A view as integers of the same width: NumPy has no bfloat16."""
    width = tensor.dtype.itemsize
    array: Array = (tensor.view(_INTEGERS[width]) if width in _INTEGERS else tensor).numpy()
    return array


def _check(name: str, came: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if came.dtype != dtype or tuple(came.shape) != shape:
        raise DataError(
            f"the source read column {name!r} as {came.dtype} of shape {list(came.shape)}; "
            f"its schema says {dtype} of shape {list(shape)}"
        )
