"""Tensors of a body that lie there as they lie in a room: one copy brings all of them into shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from flatout.serving.asking import Array
from flatout.serving.front.prepared_checks import BytesCheck, TensorCheck

_view: Any = np.ndarray


class PlacedTensor(NamedTuple):
    """A tensor of numbers in the body."""

    name: str
    dtype: np.dtype[Any]
    start: int
    shape: tuple[int, ...]
    check: TensorCheck | None
    quick_check: BytesCheck | None  # of one row, from its bytes

    def array(self, body: bytes) -> Array:
        array: Array = _view(self.shape, self.dtype, body, self.start)
        return array


class PackedColumns:
    """The columns of a request by name, and all of them as `records`; None if they lie in another way."""

    __slots__ = ("_body", "_placed", "records")

    def __init__(self, placed: tuple[PlacedTensor, ...], body: bytes, records: bytes | None) -> None:
        self._placed, self._body, self.records = placed, body, records

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        return ((one.name, one.array(self._body)) for one in self._placed)
