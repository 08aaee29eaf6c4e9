"""Samples of a stream from a worker's memory to the device, with what tells where in the stream they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.data.feeds.slots import Slots
from flatout.data.offers import StreamState, Taken
from flatout.data.source import Batch, Column

_NUMBERS = Column(torch.int64, ())
_ROWS, _VISITS = "<rows>", "<visits>"


@dataclass
class StreamedSamples:
    """Samples that were read ahead and not yet served. `snapshot` is from before the first."""

    columns: Batch
    rows: Tensor
    visits: Tensor
    numbers: tuple[Any, Any]  # the same on the host: place and pass
    snapshot: StreamState | None
    copied: Any = None

    def split(self, size: int) -> tuple[StreamedSamples, StreamedSamples]:
        return self._cut(slice(None, size), self.snapshot), self._cut(slice(size, None), None)

    def _cut(self, part: slice, snapshot: StreamState | None) -> StreamedSamples:
        columns = {name: column[part] for name, column in self.columns.items()}
        places, passes = self.numbers
        return StreamedSamples(columns, self.rows[part], self.visits[part], (places[part], passes[part]), snapshot, self.copied)


class Landing:
    """From a worker's memory to the device, through pinned buffers and on a stream of its own; on a CPU, a copy."""

    def __init__(self, schema: Mapping[str, Column], batch: int, device: torch.device, slots: int) -> None:
        self._device = device
        self._schema = dict(schema)
        self._slots: Slots | None = None
        if device.type != "cpu":
            self._module = torch.get_device_module(device)
            self._stream = self._module.Stream(device)
            self._slots = Slots({**self._schema, _ROWS: _NUMBERS, _VISITS: _NUMBERS}, batch, slots)

    @property
    def degraded(self) -> list[str]:
        return [] if self._slots is None else self._slots.degraded

    def land(self, taken: Taken, columns: Mapping[str, Tensor]) -> StreamedSamples:
        size = len(taken.places)
        host = {name: column[:size] for name, column in columns.items()}
        host[_ROWS], host[_VISITS] = torch.from_numpy(taken.places), torch.from_numpy(taken.passes)
        copied = None
        if self._slots is None:
            landed = {name: column.clone() for name, column in host.items()}
        else:
            slot = self._slots.borrow()
            filled = {name: slot.take(name, size).copy_(column) for name, column in host.items()}
            with self._module.stream(self._stream):
                landed = {name: column.to(self._device, non_blocking=True) for name, column in filled.items()}
                slot.copied = copied = self._stream.record_event()
            self._slots.give_back(slot)
        rows, visits = landed.pop(_ROWS), landed.pop(_VISITS)
        return StreamedSamples(landed, rows, visits, (taken.places, taken.passes), taken.snapshot, copied)

    def receive(self, piece: StreamedSamples) -> None:
        """Order the current stream after the copy; the host does not wait."""
        if piece.copied is None:
            return
        current = self._module.current_stream(self._device)
        current.wait_event(piece.copied)
        for tensor in (*piece.columns.values(), piece.rows, piece.visits):
            tensor.record_stream(current)
