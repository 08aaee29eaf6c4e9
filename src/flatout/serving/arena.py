"""Shared memory of one front: it alone allocates, executors read and write what they are told about.

Blocks are powers of two and lie at multiples of their size, so requests of one kind are rows of one array:
`memory.reshape(-1, block)`. Freed blocks are merged only when no block is left: merging at once would split the whole memory
again for the next request.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from flatout.base.units import show_bytes
from flatout.serving.asking import NoRoom

Array = np.ndarray[Any, Any]

SMALLEST_BLOCK = 256  # bytes: a failed request's text fits


class SharedMemory:
    """Pages that other processes map by `descriptor`. They are freed when the last process lets them go."""

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor."""
        self.descriptor = descriptor
        self.nbytes = os.fstat(descriptor).st_size
        self.raw = mmap.mmap(descriptor, self.nbytes)  # its slices are bytes, several times cheaper than those of an array
        self.memory: Array = np.frombuffer(self.raw, np.uint8)

    @classmethod
    def create(cls, nbytes: int) -> SharedMemory:
        descriptor = os.memfd_create("flatout-arena", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, nbytes)
        return cls(descriptor)

    def close(self) -> None:
        """The pages themselves go when no array refers to them."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Arena:
    """Allocates blocks of `shared`. Sizes are given as their power of two: a block has 1 << power bytes."""

    def __init__(self, nbytes: int) -> None:
        self.top = max(nbytes, SMALLEST_BLOCK).bit_length() - 1  # the largest power of two that is not above nbytes
        self.shared = SharedMemory.create(1 << self.top)
        self._lowest = SMALLEST_BLOCK.bit_length() - 1
        self._free: list[list[int]] = [[] for _ in range(self.top + 1)]
        self._free[self.top].append(0)
        self.free_bytes = 1 << self.top
        self._freed_bytes = 0  # since the last merge

    def power_for(self, nbytes: int) -> int:
        """Of the smallest block that holds this many bytes. NoRoom if the whole memory is smaller."""
        power = max(self._lowest, (nbytes - 1).bit_length())
        if power > self.top:
            have = show_bytes(1 << self.top)
            raise NoRoom(
                f"the request needs {show_bytes(nbytes)} for its rows and answers, and all shared memory is {have}: "
                "ask with fewer rows, or start the server with more memory for requests",
                ever=False,
            )
        return power

    def allocate(self, power: int) -> int:
        """The offset of a block. NoRoom if there is none until others are freed."""
        free = self._free[power]
        if free:
            self.free_bytes -= 1 << power
            return free.pop()
        found = self._split(power)
        if found is None and self.free_bytes >= 1 << power and self._freed_bytes:
            self._merge()
            found = self._split(power)
        if found is None:
            raise NoRoom(f"no {show_bytes(1 << power)} of shared memory are free: too many requests are under way", ever=True)
        self.free_bytes -= 1 << power
        return found

    def free(self, offset: int, power: int) -> None:
        self._free[power].append(offset)
        size = 1 << power
        self.free_bytes += size
        self._freed_bytes += size

    def _split(self, power: int) -> int | None:
        for larger in range(power, self.top + 1):
            if self._free[larger]:
                offset = self._free[larger].pop()
                for half in range(larger - 1, power - 1, -1):
                    self._free[half].append(offset + (1 << half))
                return offset
        return None

    def _merge(self) -> None:
        """Two free halves become one block, from the smallest blocks to the largest."""
        self._freed_bytes = 0
        for power in range(self._lowest, self.top):
            free = self._free[power]
            if len(free) < 2:
                continue
            places = np.sort(np.array(free, dtype=np.int64))
            first_half = (places >> power) % 2 == 0
            whole = np.zeros(len(places), dtype=bool)
            whole[:-1] = first_half[:-1] & (places[1:] == places[:-1] + (1 << power))
            if not whole.any():
                continue
            rest = ~whole
            rest[1:] &= ~whole[:-1]
            self._free[power + 1].extend(places[whole].tolist())
            self._free[power] = places[rest][::-1].tolist()  # low offsets are used first
        if len(self._free[self.top]) == 1 and self.free_bytes != 1 << self.top:
            raise AssertionError("blocks of an arena were freed twice")

    def close(self) -> None:
        self.shared.close()
