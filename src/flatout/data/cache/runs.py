"""Ragged rows in memory, appended to a list of large chunks.

If all sizes are known in advance there is one chunk, with rows in the order of the source.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flatout.base.units import show_bytes
from flatout.data.cache.records import START, Array, RecordLayout, plain, starts
from flatout.data.files.room import empty
from flatout.data.offers import Take
from flatout.data.source import Batch

CHUNK_BYTES = 64 << 20


class Runs:
    """The ragged columns of a source. One thread at a time calls `allocate`, once for each row."""

    def __init__(self, layout: RecordLayout, rows: int, limit_bytes: int | None, known_sizes: Tensor | None) -> None:
        self._layout = layout
        self._limit_bytes = limit_bytes
        self._chunks: list[Batch] = []
        self._chunk = np.zeros(rows, np.int32)
        self._first = np.zeros(rows, np.int64)  # item in its chunk
        self._sizes = np.zeros(rows, np.int64)
        self._used, self._room = 0, 0  # items of the last chunk
        self._known: list[int] | None = None
        if known_sizes is not None and layout.ragged:
            self._sizes = known_sizes.numpy().astype(np.int64)[:rows]
            self._first = starts(self._sizes)
            self._known = self._sizes.tolist()
            self._add_chunk(int(self._sizes.sum()))
            self._room = 0  # all of it is reserved; a row with another size than expected goes to a new chunk

    def allocate(self, rows: Array, sizes: Array) -> tuple[Array, str | None]:
        """(a bool for each row: it has a place; the reason if there is no room for more rows)."""
        fits = np.ones(len(rows), bool)
        if not self._layout.ragged:
            return fits, None
        for place, (row, size) in enumerate(zip(rows.tolist(), sizes.tolist(), strict=True)):
            if self._known is not None and size == self._known[row]:
                continue
            if (self._used + size > self._room or not self._chunks) and (why := self._grow(size)):
                fits[place] = False
                if self._known is None:
                    fits[place:] = False
                    return fits, why
            else:
                self._chunk[row], self._first[row], self._sizes[row] = len(self._chunks) - 1, self._used, size
                self._used += size
        return fits, None

    def write(self, rows: Array, begins: Array, batch: Batch) -> None:
        """Store rows; `begins` says where each one begins in the flat columns of `batch`."""
        for name in self._layout.ragged:
            chunks, flat = self._arrays(name), plain(batch[name])
            for chunk, first, size, begin in self._places(rows, begins):
                chunks[chunk][first : first + size] = flat[begin : begin + size]

    def read(self, rows: Array, take: Take | None) -> Batch:
        sizes = self._sizes[rows] if self._layout.ragged else rows[:0]
        flat = self._layout.flat(sizes, take)
        for name in self._layout.ragged:
            chunks, target = self._arrays(name), plain(flat[name])
            for chunk, first, size, begin in self._places(rows, starts(sizes)):
                target[begin : begin + size] = chunks[chunk][first : first + size]
        return flat

    def joined(self) -> Runs:
        """A copy with all chunks joined to one."""
        if not self._layout.ragged or len(self._chunks) == 1:
            return self
        ends = np.zeros(len(self._chunks), np.int64)
        np.maximum.at(ends, self._chunk, self._first + self._sizes)
        one = Runs(self._layout, 0, self._limit_bytes, None)
        one._chunk, one._first, one._sizes = np.zeros_like(self._chunk), self._first + starts(ends)[self._chunk], self._sizes
        one._chunks = [
            {
                name: torch.cat([chunk[name][:end] for chunk, end in zip(self._chunks, ends.tolist(), strict=True)])
                for name in self._layout.ragged
            }
        ]
        return one

    def whole(self) -> Batch:
        if not self._layout.ragged:
            return {}
        end = int((self._first + self._sizes).max(initial=0))
        return {**{name: column[:end] for name, column in self._chunks[0].items()}, START: torch.from_numpy(self._first)}

    def _grow(self, size: int) -> str | None:
        """Add a chunk for at least this many items. Returns why that is impossible, or None."""
        items = max(size, CHUNK_BYTES // self._layout.item_bytes)
        if self._limit_bytes is not None:
            taken = sum(column.nbytes for chunk in self._chunks for column in chunk.values())
            items = min(items, (self._limit_bytes - taken) // self._layout.item_bytes)
            if items < size:
                return f"its limit of {show_bytes(self._limit_bytes)} is reached"
        try:
            self._add_chunk(items)
        except RuntimeError as error:  # torch raises it when memory runs out
            return str(error).splitlines()[0]
        return None

    def _add_chunk(self, items: int) -> None:
        self._chunks.append({name: empty((items,), column.dtype) for name, column in self._layout.ragged.items()})
        self._used, self._room = 0, items

    def _arrays(self, name: str) -> list[Array]:
        return [plain(chunk[name]) for chunk in self._chunks]

    def _places(self, rows: Array, begins: Array) -> Iterator[tuple[int, int, int, int]]:
        """(chunk, first item there, items, first item in a batch) of each row."""
        columns = (self._chunk[rows], self._first[rows], self._sizes[rows], begins)
        return zip(*(column.tolist() for column in columns), strict=True)
