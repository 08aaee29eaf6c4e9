"""Pinned host buffers, allocated once and lent to one reader at a time.

A buffer is returned with the event after which the device no longer reads it, and is not lent again before that event.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flatout.data.source import Column


class Slot:
    """Buffers for one batch. `began` and `copied` are the events before and after the last copy from them."""

    def __init__(self, owner: Slots) -> None:
        self.began: Any = None
        self.copied: Any = None
        self.copied_bytes = 0
        self._owner = owner
        self._buffers = {name: owner.buffer(_items(column, owner.batch), column) for name, column in owner.columns.items()}

    def take(self, name: str, length: int) -> Tensor:
        """The first `length` rows (items of a ragged column) of a buffer, which grows if it is too small."""
        buffer = self._buffers[name]
        if len(buffer) < length:
            self._buffers[name] = buffer = self._owner.buffer(_power_of_two(length), self._owner.columns[name])
        return buffer[:length]

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())


class Slots:
    """At most `most` slots, allocated on demand. `borrow` waits only if all are lent or being copied from."""

    def __init__(self, columns: Mapping[str, Column], batch: int, most: int) -> None:
        self.degraded: list[str] = []
        self.columns, self.batch = dict(columns), batch
        self._most = most
        self._returned = threading.Condition()
        first = Slot(self)  # at once, so that problems with pinned memory are known from the start
        self._all = [first]
        self._free = deque([first])  # the one returned first is in front

    def resize(self, most: int) -> None:
        with self._returned:
            self._most = most
            while len(self._all) > most and self._free:
                self._drop(self._free.pop())
            self._returned.notify_all()

    @property
    def nbytes(self) -> int:
        return sum(slot.nbytes for slot in list(self._all))

    def borrow(self) -> Slot:
        with self._returned:
            while not self._free and len(self._all) >= self._most:
                self._returned.wait()
            if self._free and (len(self._all) >= self._most or _passed(self._free[0])):
                slot = self._free.popleft()
            else:
                slot = Slot(self)
                self._all.append(slot)
        if slot.copied is not None:
            slot.copied.synchronize()  # the reading thread waits here, not the training thread
        return slot

    def give_back(self, slot: Slot) -> None:
        with self._returned:
            self._free.append(slot)
            if len(self._all) > self._most:
                self._drop(self._free.pop())
            self._returned.notify()

    def buffer(self, items: int, column: Column) -> Tensor:
        shape = (items, *column.shape)
        if not self.degraded:
            try:
                return torch.empty(shape, dtype=column.dtype, pin_memory=True)
            except RuntimeError as error:
                why = str(error).splitlines()[0]
                self.degraded.append(f"memory could not be pinned ({why}): batches are copied from pageable memory")
        return torch.empty(shape, dtype=column.dtype)

    def _drop(self, slot: Slot) -> None:
        """Does not wait: the allocator of pinned memory reuses it only after the copies from it are done."""
        self._all.remove(slot)


def _passed(slot: Slot) -> bool:
    return slot.copied is None or bool(slot.copied.query())


def _items(column: Column, batch: int) -> int:
    return batch if column.ragged is None else _power_of_two(math.ceil(column.ragged * batch))


def _power_of_two(items: int) -> int:
    """The size that the allocator of pinned memory rounds up to anyway."""
    return 1 << max(0, items - 1).bit_length()
