"""Stores that keep rows of a source: any thread puts rows in any order, and reads them back bit for bit.

`MemoryStore` keeps them in host memory: fixed columns in the order of the source, ragged columns in chunks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
import psutil
import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.base.units import show_bytes
from flatout.data.cache.records import Array, RecordLayout, starts
from flatout.data.cache.runs import CHUNK_BYTES, Runs
from flatout.data.files.room import empty
from flatout.data.offers import Take
from flatout.data.source import Batch, Source
from flatout.machine.host import free_host_bytes

_KEEP_FREE = 0.05  # of the host's memory, for other processes
_INDEX_BYTES = 32  # of each row, in addition to its content


class RowStore(Protocol):
    """`degraded` says why rows could not be kept; such rows are read from the source again."""

    @property
    def degraded(self) -> list[str]: ...

    @property
    def complete(self) -> bool: ...

    @property
    def sound(self) -> bool:
        """Whether every row is kept and intact, so that `has` need not be asked."""
        ...

    @property
    def in_memory(self) -> bool:
        """Whether rows are in the memory of this process."""
        ...

    def has(self, rows: Tensor) -> Tensor:
        """A bool for each row: it is kept and intact."""
        ...

    def put(self, rows: Tensor, batch: Batch, passing: Tensor | None = None) -> None:
        """Keep copies of rows that are not kept yet, as far as there is room.

        Rows that are true in `passing` replace bad rows in this run only: a store on disk does not keep them.
        """
        ...

    def read(self, rows: Tensor, take: Take | None = None) -> Batch:
        """Rows for which `has` was true, in the order asked for, into the tensors of `take`."""
        ...

    def stored(self) -> dict[str, Tensor]:
        """All rows, in the form that the source's `gather` takes. Only if the store is complete."""
        ...

    def flush(self) -> None:
        """Returns when all rows that were put are stored, unless `degraded` says why not."""
        ...

    def close(self) -> None: ...


def bytes_needed(source: Source) -> int:
    """Estimated size of a store of the whole source; ragged columns count by their mean length."""
    layout = RecordLayout.of(source.schema)
    return round(len(source) * (layout.row_bytes + _INDEX_BYTES))


class MemoryStore:
    """A store in host memory. With `limit_bytes`, only as many rows from the start of the source are kept."""

    in_memory = True

    def __init__(
        self, source: Source, limit_bytes: int | None = None, *, free_bytes: Callable[[], int] = free_host_bytes
    ) -> None:
        self.degraded: list[str] = []
        self._rows = len(source)
        self._layout = RecordLayout.of(source.schema)
        self._capacity = self._rows
        if limit_bytes is not None and bytes_needed(source) > limit_bytes:
            self._capacity = int(max(0, limit_bytes) / (self._layout.row_bytes + _INDEX_BYTES))
        self._full = False
        try:
            self._columns, self._runs = self._allocated(limit_bytes, source.sizes)
        except RuntimeError as error:  # torch raises it when memory runs out
            self._stop(str(error).splitlines()[0])
            self._capacity = 0
            self._columns, self._runs = self._allocated(limit_bytes, source.sizes)
        self._claimed = np.zeros(self._rows, bool)  # kept, or being written by a thread
        self._claimed[self._capacity :] = True
        self._present = torch.zeros(self._rows, dtype=torch.bool)
        self._count = 0
        self._free_bytes = free_bytes
        self._keep_free_bytes = round(_KEEP_FREE * psutil.virtual_memory().total)
        self._unchecked_bytes = CHUNK_BYTES  # put since free memory was last checked
        self._one_at_a_time = threading.Lock()

    @property
    def complete(self) -> bool:
        return self._count == self._rows

    @property
    def sound(self) -> bool:
        return self.complete

    def has(self, rows: Tensor) -> Tensor:
        return self._present.index_select(0, rows)

    def put(self, rows: Tensor, batch: Batch, passing: Tensor | None = None) -> None:
        sizes = self._layout.sizes(batch, len(rows))
        wanted = rows.numpy()
        with self._one_at_a_time:
            picked = np.unique(wanted, return_index=True)[1]  # each row once
            picked = self._with_room(wanted, picked[~self._claimed[wanted[picked]]], sizes)
            self._claimed[wanted[picked]] = True
            runs = self._runs
        if not len(picked):
            return
        kept, chosen = rows[picked], torch.from_numpy(picked)
        for name, column in self._columns.items():
            column.index_copy_(0, kept, batch[name].index_select(0, chosen))
        runs.write(wanted[picked], starts(sizes)[picked], batch)
        with self._one_at_a_time:
            self._present[kept] = True
            self._count += len(picked)

    def read(self, rows: Tensor, take: Take | None = None) -> Batch:
        found: Batch = {}
        for name, column in self._columns.items():
            if take is None:
                found[name] = column.index_select(0, rows)
            else:
                found[name] = torch.index_select(column, 0, rows, out=take(name, len(rows)))
        return {**found, **self._runs.read(rows.numpy(), take)}

    def stored(self) -> dict[str, Tensor]:
        if not self.complete:
            raise UsageError(f"{self._rows - self._count} of {self._rows} rows are not in the store yet: read them first")
        with self._one_at_a_time:
            self._runs = self._runs.joined()  # threads that still read the old one finish there
            return {**self._columns, **self._runs.whole()}

    def flush(self) -> None:
        """Nothing to do: rows are stored at once."""

    def close(self) -> None:
        """Nothing to close."""

    def _allocated(self, limit_bytes: int | None, sizes: Tensor | None) -> tuple[Batch, Runs]:
        fixed = self._layout.fixed.items()
        columns = {name: empty((self._capacity, *column.shape), column.dtype) for name, column in fixed}
        return columns, Runs(self._layout, self._capacity, limit_bytes, sizes)

    def _with_room(self, wanted: Array, picked: Array, sizes: Array) -> Array:
        """The picked rows for which there is room; the room is reserved."""
        if self._full or not len(picked):
            return picked[:0]
        self._unchecked_bytes += len(picked) * self._layout.record_bytes + int(sizes[picked].sum()) * self._layout.item_bytes
        if self._unchecked_bytes >= CHUNK_BYTES:
            self._unchecked_bytes = 0
            free = self._free_bytes()
            if free < self._keep_free_bytes + CHUNK_BYTES:
                self._stop(f"only {show_bytes(free)} of host memory are free")
                return picked[:0]
        fits, why = self._runs.allocate(wanted[picked], sizes[picked])
        if why is not None:
            self._stop(why)
        return picked[fits]

    def _stop(self, why: str) -> None:
        self._full = True
        if self._capacity == self._rows:  # else the limit excluded some rows from the start
            self.degraded.append(
                f"the store in memory takes no more rows ({why}): other rows are read from the source every time"
            )
