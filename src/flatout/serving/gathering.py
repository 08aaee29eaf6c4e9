"""Rows of many requests become one batch, and its outputs go back to the requests' rooms.

Requests of one row that lie in blocks of one size are rows of one array, so NumPy moves all of them in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.base.errors import ModelError
from flatout.serving.arena import SharedMemory
from flatout.serving.batching import ReadyBatch, Sizes, Waiting
from flatout.serving.records import RecordField
from flatout.serving.rows_in_rooms import RoomLayout, strided

Array = np.ndarray[Any, Any]

_LARGE = 4096  # bytes of one row of a field: such rows are copied one by one, which saves a copy of all of them


class OneRowViews:
    """Every block of one size as a request of one row: a field of all of them is one array of items (see `items_of`)."""

    def __init__(self, layout: RoomLayout, memory: Array, power: int) -> None:
        self._blocks, self._step = len(memory) >> power, 1 << power
        begin = layout.outputs_begin(1)
        self.inputs = [self._items(one, memory, 0) for one in layout.inputs.fields]
        self.outputs = [self._items(one, memory, begin) for one in layout.outputs.fields]

    def _items(self, one: RecordField, memory: Array, begin: int) -> Array:
        if one.nbytes == 0:
            return strided(one, memory, begin, self._blocks, self._step)
        return np.ndarray((self._blocks,), one.item_type, memory, begin + one.start, (self._step,))


def items_of(one: RecordField, array: Array) -> Array:
    """A contiguous array [rows, *shape] as rows of items."""
    if not one.shape or not one.nbytes:
        return array
    return np.ndarray((len(array),), one.item_type, array)


class AttachedArena:
    """A front's shared memory, seen from an executor."""

    def __init__(self, descriptor: int) -> None:
        self._shared = SharedMemory(descriptor)
        self.memory = self._shared.memory
        self._views: dict[tuple[int, Sizes, int], OneRowViews] = {}

    def views(self, model: int, layout: RoomLayout, power: int) -> OneRowViews:
        key = (model, layout.sizes, power)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= 1024:  # texts of any length have any number of shapes
                self._views.clear()
            found = self._views[key] = OneRowViews(layout, self.memory, power)
        return found

    def write_text(self, request: Waiting, text: str) -> int:
        """Into the request's block, as the last thing that is written there. Returns its bytes."""
        data = text.encode()[: 1 << request.power]
        self.memory[request.offset : request.offset + len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def close(self) -> None:
        self._views.clear()
        self._shared.close()


@dataclass(slots=True)
class BatchPlaces:
    """Which rows of the batch are whose: `singles` are (views, blocks, first row, end), `several` are (request, first row)."""

    layout: RoomLayout
    singles: list[tuple[OneRowViews, Array | slice, int, int]]
    several: list[tuple[Waiting, int]]
    start: int
    rows: int


def places_of(batch: ReadyBatch, layout: RoomLayout) -> BatchPlaces:
    requests, number = batch.requests, batch.model.number
    first = requests[0]
    front, power = first.front, first.power
    if batch.rows == len(requests) and not batch.start and first.rows == 1:
        if len(requests) == 1 or all(request.front is front and request.power == power for request in requests):
            return BatchPlaces(layout, [_together(requests, number, layout, 0)], [], 0, batch.rows)
        alike: dict[tuple[int, int], list[Waiting]] = {}
        for request in requests:
            alike.setdefault((id(request.front), request.power), []).append(request)
        singles, at = [], 0
        for group in alike.values():
            singles.append(_together(group, number, layout, at))
            at += len(group)
        # answers go by the rooms, so the order in the batch does not matter
        return BatchPlaces(layout, singles, [], 0, batch.rows)
    return places_in_order(batch, layout)


def places_in_order(batch: ReadyBatch, layout: RoomLayout) -> BatchPlaces:
    """The rows of the batch are those of its requests, one after the other."""
    several, at = [], 0
    for request in batch.requests:
        several.append((request, at))
        at += request.rows
    return BatchPlaces(layout, [], several, batch.start, batch.rows)


def _together(group: Sequence[Waiting], model: int, layout: RoomLayout, at: int) -> tuple[OneRowViews, Array | slice, int, int]:
    first = group[0]
    power, views = first.power, first.front.arena.views(model, layout, first.power)
    if len(group) == 1:
        block = first.offset >> power
        return views, slice(block, block + 1), at, at + 1
    blocks = np.array([request.offset for request in group], dtype=np.int64)
    blocks >>= power
    return views, blocks, at, at + len(group)


def gather(places: BatchPlaces, targets: Sequence[Array], items: Sequence[Array]) -> None:
    """Into `targets`, one contiguous array for each input field, of the rows of the batch or more; `items` are the same
    memory as `items_of` gives it."""
    layout = places.layout
    for views, blocks, at, end in places.singles:
        for target, source in zip(items, views.inputs, strict=True):
            if source.itemsize < _LARGE or isinstance(blocks, slice):
                target[at:end] = source[blocks]
            else:
                for row, block in enumerate(blocks.tolist(), at):
                    target[row : row + 1] = source[block : block + 1]
    step = layout.inputs.row_bytes
    for request, at in places.several:
        rows = min(request.rows, places.rows)
        begin = request.offset + places.start * step
        for one, target in zip(layout.inputs.fields, targets, strict=True):
            target[at : at + rows] = strided(one, request.front.arena.memory, begin, rows, step)


def scatter(places: BatchPlaces, outputs: Mapping[str, Array]) -> None:
    """ModelError if outputs have other shapes or types than their room."""
    layout = places.layout
    fields = layout.outputs.fields
    made = [_checked(one, outputs, places.rows) for one in fields]
    for views, blocks, at, end in places.singles:
        for one, target, array in zip(fields, views.outputs, made, strict=True):
            target[blocks] = items_of(one, array)[at:end]
    step = layout.outputs.row_bytes
    for request, at in places.several:
        rows = min(request.rows, places.rows)
        begin = request.offset + layout.outputs_begin(request.rows) + places.start * step
        for one, array in zip(fields, made, strict=True):
            strided(one, request.front.arena.memory, begin, rows, step)[...] = array[at : at + rows]


def _checked(one: RecordField, outputs: Mapping[str, Array], rows: int) -> Array:
    if one.name not in outputs:
        raise ModelError(f"the model gave no output {one.name!r}; it gave {', '.join(outputs)}")
    array = outputs[one.name]
    if array.shape != (rows, *one.shape) or array.dtype != one.dtype:
        came, wanted = f"{array.dtype} {list(array.shape)}", f"{one.dtype} {[rows, *one.shape]}"
        raise ModelError(f"the model's output {one.name!r} is {came} for a batch of {rows}; the server made room for {wanted}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
