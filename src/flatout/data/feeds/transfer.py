"""Copies of batches from the host to a device, through pinned buffers and on a separate stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.data.feeds.slots import Slot, Slots
from flatout.data.source import Batch, Column, Schema

Finish = Callable[[Batch, Tensor, Tensor], Batch]
"""Makes a batch from the columns that were read, their rows and visits."""

_NUMBERS = Column(torch.int64, ())
_ROWS, _VISITS = "<rows>", "<visits>"  # next to the columns in a slot


@dataclass(frozen=True)
class SentBatch:
    """Its tensors may be used once the stream has passed `ready`. None: they are on the host."""

    columns: Batch
    rows: Tensor
    visits: Tensor
    ready: Any = None


class Transfer:
    """Copies for one feed. On a CPU there are no `slots`, and batches stay where they are."""

    def __init__(self, schema: Schema, batch: int, device: torch.device, most_slots: int) -> None:
        self.copied_bytes, self.copy_s = 0, 0.0
        self.slots: Slots | None = None
        self._device = device
        self._lock = threading.Lock()
        if device.type != "cpu":
            self._module = torch.get_device_module(device)
            self._stream = self._module.Stream(device)
            self.slots = Slots({**schema, _ROWS: _NUMBERS, _VISITS: _NUMBERS}, batch, most_slots)

    @property
    def degraded(self) -> list[str]:
        return [] if self.slots is None else self.slots.degraded

    @property
    def buffer_bytes(self) -> int:
        return 0 if self.slots is None else self.slots.nbytes

    def resize(self, most_slots: int) -> None:
        if self.slots is not None:
            self.slots.resize(most_slots)

    def borrow(self) -> Slot | None:
        """Buffers whose last copy is over. None on a CPU."""
        if self.slots is None:
            return None
        slot = self.slots.borrow()
        if slot.copied is not None:
            copy_s = slot.began.elapsed_time(slot.copied) / 1e3
            with self._lock:
                self.copied_bytes += slot.copied_bytes
                self.copy_s += copy_s
        return slot

    def give_back(self, slot: Slot | None) -> None:
        if self.slots is not None and slot is not None:
            self.slots.give_back(slot)

    def copy(self, columns: Batch, rows: Tensor, visits: Tensor) -> SentBatch:
        """A copy of columns whose memory the caller reuses."""
        slot = self.borrow()
        if slot is None:
            return SentBatch({name: column.clone() for name, column in columns.items()}, rows.clone(), visits.clone())
        try:
            filled = {name: slot.take(name, len(column)).copy_(column) for name, column in columns.items()}
            return self.upload(slot, filled, rows, visits)
        finally:
            self.give_back(slot)

    def upload(
        self,
        slot: Slot,
        columns: Batch,
        rows: Tensor,
        visits: Tensor,
        *,
        exchange: Callable[[Batch], Batch] | None = None,
        finish: Finish | None = None,
    ) -> SentBatch:
        """Send the columns in `slot`. `exchange` replaces them before the copy and `finish` after it, on the same stream."""
        with self._module.stream(self._stream):
            slot.began = self._event()
            slot.copied_bytes = sum(column.nbytes for column in columns.values())
            filled = dict(columns) if exchange is None else exchange(columns)
            filled[_ROWS] = slot.take(_ROWS, len(rows)).copy_(rows)
            filled[_VISITS] = slot.take(_VISITS, len(rows)).copy_(visits)
            uploaded = {name: column.to(self._device, non_blocking=True) for name, column in filled.items()}
            slot.copied = ready = self._event()
            rows, visits = uploaded.pop(_ROWS), uploaded.pop(_VISITS)
            if finish is not None:
                uploaded = finish(uploaded, rows, visits)
                ready = self._stream.record_event()
        return SentBatch(uploaded, rows, visits, ready)

    def receive(self, sent: SentBatch) -> None:
        """Make the current stream wait for the copy. The host does not wait."""
        if sent.ready is None:
            return
        current = self._module.current_stream(self._device)
        current.wait_event(sent.ready)
        for tensor in (*sent.columns.values(), sent.rows, sent.visits):
            tensor.record_stream(current)  # allocated on the side stream: not to be reused before this stream is done

    def follow(self) -> None:
        """Later copies wait for the work that is on the current stream now."""
        if self.slots is not None:
            self._stream.wait_stream(self._module.current_stream(self._device))

    def _event(self) -> Any:
        return self._stream.record_event(self._module.Event(enable_timing=True))
