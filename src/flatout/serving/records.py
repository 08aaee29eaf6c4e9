"""Rows as bytes: one row of several tensors is one record, and all records of a request lie one after the other.

layout = RowLayout.of(program.inputs, sizes)
columns = layout.columns(memory, rows)      # {"numeric": float32 [rows, 6], ...}: views, to write or to read
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from struct import Struct
from typing import Any

import numpy as np

from flatout.packaging.ports import Port

Array = np.ndarray[Any, Any]

_ALIGNED = 8  # bytes: every item of a column is then aligned
MOST_SIZES = 4


@dataclass(frozen=True)
class RecordField:
    """One tensor of a row: its bytes begin at `start` of the record."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @cached_property
    def nbytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape)

    @cached_property
    def item_type(self) -> np.dtype[Any]:
        """All bytes of a row's field as one item, which NumPy moves several times faster than rows of two dimensions."""
        return np.dtype((np.void, self.nbytes)) if self.shape and self.nbytes else self.dtype


@dataclass(frozen=True)
class RowLayout:
    fields: tuple[RecordField, ...]
    row_bytes: int

    @classmethod
    def of(cls, ports: Sequence[Port], sizes: Sequence[int] = ()) -> RowLayout:
        """`sizes` are those of the open dimensions beside the rows, in the order of the ports; see `open_sizes`."""
        left = list(sizes)
        fields, start = [], 0
        for port in ports:
            shape = tuple(left.pop(0) if size is None else size for size in port.shape[1:])
            field = RecordField(port.name, numpy_type(port.dtype), shape, start)
            fields.append(field)
            start += -(-field.nbytes // _ALIGNED) * _ALIGNED
        return cls(tuple(fields), start)

    @cached_property
    def by_name(self) -> dict[str, RecordField]:
        return {one.name: one for one in self.fields}

    @cached_property
    def fields_of(self) -> Callable[[bytes], tuple[bytes, ...]]:
        """The bytes of each field, from those of a record."""
        ends = [*(one.start for one in self.fields[1:]), self.row_bytes]
        gaps = [end - one.start - one.nbytes for one, end in zip(self.fields, ends, strict=True)]
        return Struct("".join(f"{one.nbytes}s{gap}x" for one, gap in zip(self.fields, gaps, strict=True))).unpack

    def is_packed(self, rows: int) -> bool:
        """Whether the tensors of so many rows, one after the other, have the same bytes as the records of these rows."""
        if rows == 1:
            return all(one.nbytes % _ALIGNED == 0 for one in self.fields[:-1])
        return len(self.fields) == 1 and self.fields[0].nbytes == self.row_bytes

    def columns(self, memory: Array, rows: int) -> dict[str, Array]:
        """Views of `memory`, which has uint8 [rows * row_bytes] or more."""
        found = {}
        for field in self.fields:
            steps = [field.dtype.itemsize]
            for size in reversed(field.shape[1:]):
                steps.insert(0, steps[0] * size)
            strides = (self.row_bytes, *(steps if field.shape else ()))
            found[field.name] = np.ndarray((rows, *field.shape), field.dtype, memory, field.start, strides)
        return found


class RowOutputs(Mapping[str, Array]):
    """One row of several tensors, as a copy of its record. Arrays are made when they are asked for."""

    __slots__ = ("layout", "record")

    def __init__(self, layout: RowLayout, record: bytes) -> None:
        self.layout, self.record = layout, record

    def __getitem__(self, name: str) -> Array:
        one = self.layout.by_name[name]
        return np.ndarray((1, *one.shape), one.dtype, self.record, one.start)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.by_name)

    def __len__(self) -> int:
        return len(self.layout.fields)


def open_sizes(ports: Sequence[Port], columns: Mapping[str, Any]) -> tuple[int, ...]:
    """The sizes that these tensors have where the ports leave them open."""
    return tuple(
        columns[port.name].shape[axis + 1] for port in ports for axis, size in enumerate(port.shape[1:]) if size is None
    )


def numpy_type(dtype: str) -> np.dtype[Any]:
    """Of a torch type by its name. bfloat16 has none in NumPy: its bits are uint16."""
    return np.dtype({"bfloat16": "uint16", "bool": "bool_"}.get(dtype, dtype))
