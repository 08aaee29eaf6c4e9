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
    """Every block of one size as a request of one row: a field of all of them is one array."""

    def __init__(self, layout: RoomLayout, memory: Array, power: int) -> None:
        blocks, step = len(memory) >> power, 1 << power
        begin = layout.outputs_begin(1)
        self.inputs = [strided(one, memory, 0, blocks, step) for one in layout.inputs.fields]
        self.outputs = [strided(one, memory, begin, blocks, step) for one in layout.outputs.fields]


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
    """Which rows of the batch are whose: `singles` are (views, blocks, first row), `several` are (request, first row)."""

    layout: RoomLayout
    singles: list[tuple[OneRowViews, Array, int]]
    several: list[tuple[Waiting, int]]
    start: int
    rows: int


def places_of(batch: ReadyBatch, layout: RoomLayout) -> BatchPlaces:
    requests, number = batch.requests, batch.model.number
    first = requests[0]
    front, power = first.front, first.power
    if batch.rows == len(requests) and not batch.start and first.rows == 1:
        if all(request.front is front and request.power == power for request in requests):
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
    several, at = [], 0
    for request in requests:
        several.append((request, at))
        at += request.rows
    return BatchPlaces(layout, [], several, batch.start, batch.rows)


def _together(group: Sequence[Waiting], model: int, layout: RoomLayout, at: int) -> tuple[OneRowViews, Array, int]:
    power = group[0].power
    blocks = np.array([request.offset for request in group], dtype=np.int64)
    blocks >>= power
    return group[0].front.arena.views(model, layout, power), blocks, at


def gather(places: BatchPlaces, targets: Sequence[Array]) -> None:
    """Into `targets`, one array for each input field, of the rows of the batch or more."""
    layout = places.layout
    for views, blocks, at in places.singles:
        for one, target, source in zip(layout.inputs.fields, targets, views.inputs, strict=True):
            if one.nbytes < _LARGE:
                target[at : at + len(blocks)] = source[blocks]
            else:
                for row, block in enumerate(blocks.tolist(), at):
                    target[row] = source[block]
    step = layout.inputs.row_bytes
    for request, at in places.several:
        rows = min(request.rows, places.rows)
        begin = request.offset + places.start * step
        for one, target in zip(layout.inputs.fields, targets, strict=True):
            target[at : at + rows] = strided(one, request.front.arena.memory, begin, rows, step)


def scatter(places: BatchPlaces, outputs: Mapping[str, Array]) -> None:
    """ModelError if outputs have other shapes than their room."""
    layout = places.layout
    fields = layout.outputs.fields
    for one in fields:
        _check_shape(one, outputs, places.rows)
    for views, blocks, at in places.singles:
        for one, target in zip(fields, views.outputs, strict=True):
            target[blocks] = outputs[one.name][at : at + len(blocks)]
    step = layout.outputs.row_bytes
    for request, at in places.several:
        rows = min(request.rows, places.rows)
        begin = request.offset + layout.outputs_begin(request.rows) + places.start * step
        for one in fields:
            strided(one, request.front.arena.memory, begin, rows, step)[...] = outputs[one.name][at : at + rows]


def _check_shape(one: RecordField, outputs: Mapping[str, Array], rows: int) -> None:
    if one.name not in outputs:
        raise ModelError(f"the model gave no output {one.name!r}; it gave {', '.join(outputs)}")
    came = outputs[one.name].shape
    if came != (rows, *one.shape):
        raise ModelError(
            f"the model's output {one.name!r} has the shape {list(came)} for {rows} rows; expected {[rows, *one.shape]}"
        )
