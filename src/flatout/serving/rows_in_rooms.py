"""Where the rows and answers of a request lie in its block: all input records, then all output records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flatout.base.errors import ModelError
from flatout.packaging.ports import Port
from flatout.serving.records import MOST_SIZES, RecordField, RowLayout

Array = np.ndarray[Any, Any]
FieldView = tuple[str, tuple[int, ...], np.dtype[Any], int, tuple[int, ...]]  # name, shape, type, start, strides

_SMALL = 64  # rows


@dataclass(frozen=True)
class RoomLayout:
    """For rows of one shape. `sizes` are those of the open dimensions of the inputs."""

    inputs: RowLayout
    outputs: RowLayout
    sizes: tuple[int, ...] = ()
    _kept: dict[tuple[int, bool], list[FieldView]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, inputs: Sequence[Port], outputs: Sequence[Port], sizes: tuple[int, ...]) -> RoomLayout:
        """The open sizes of each output are taken to be those of the inputs, in order."""
        wanted = open_dimensions(inputs)
        if len(sizes) != wanted:
            raise ModelError(f"expected {wanted} sizes, one for each open dimension of the inputs, got {list(sizes)}")
        of_outputs = [size for port in outputs for size in sizes[: open_dimensions([port])]]
        return cls(RowLayout.of(inputs, sizes), RowLayout.of(outputs, of_outputs), sizes)

    def outputs_begin(self, rows: int) -> int:
        return rows * self.inputs.row_bytes

    def nbytes(self, rows: int) -> int:
        return rows * (self.inputs.row_bytes + self.outputs.row_bytes)

    def input_views(self, memory: Array, begin: int, rows: int) -> dict[str, Array]:
        """One array for each input of a request whose block is at `begin` of the memory."""
        return self._views(self._kept.get((rows, True)) or self._fields(rows, True), memory, begin)

    def output_views(self, memory: Array, begin: int, rows: int) -> dict[str, Array]:
        return self._views(self._kept.get((rows, False)) or self._fields(rows, False), memory, begin)

    @staticmethod
    def _views(fields: list[FieldView], memory: Array, begin: int) -> dict[str, Array]:
        return {name: np.ndarray(shape, dtype, memory, begin + start, strides) for name, shape, dtype, start, strides in fields}

    def _fields(self, rows: int, of_inputs: bool) -> list[FieldView]:
        """Shapes and strides, which are kept for small requests: these are made once a request."""
        layout = self.inputs if of_inputs else self.outputs
        start = 0 if of_inputs else self.outputs_begin(rows)
        fields = [
            (one.name, (rows, *one.shape), one.dtype, start + one.start, (layout.row_bytes, *item_strides(one)))
            for one in layout.fields
        ]
        if rows <= _SMALL:
            self._kept[rows, of_inputs] = fields
        return fields


def item_strides(one: RecordField) -> tuple[int, ...]:
    strides = [one.dtype.itemsize]
    for size in reversed(one.shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides)) if one.shape else ()


def strided(one: RecordField, memory: Array, begin: int, rows: int, step: int) -> Array:
    """This field of `rows` records, `step` bytes apart."""
    return np.ndarray((rows, *one.shape), one.dtype, memory, begin + one.start, (step, *item_strides(one)))


def open_dimensions(ports: Sequence[Port]) -> int:
    """Beside the rows."""
    return sum(size is None for port in ports for size in port.shape[1:])


def check_open_dimensions(name: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    """ModelError for a model whose requests can't be described."""
    taken, made = open_dimensions(inputs), max(open_dimensions([port]) for port in outputs)
    if taken > MOST_SIZES:
        raise ModelError(f"{name} has {taken} open dimensions in its inputs; at most {MOST_SIZES} can be served")
    if made > taken:
        raise ModelError(
            f"{name} gives an output with {made} open dimensions and takes inputs with {taken}: the size of its answers "
            "can't be known before it runs, so it can't be served"
        )
