"""Rows kept in a cache entry on disk: parts are written as rows are first read, and read through memory mappings.

Rows wait in memory until they fill a part, which a separate thread writes. Training never waits for the disk: when two parts
are waiting to be written, further rows are dropped and kept the next time they are read. One process at a time adds parts to an
entry. Other processes read the parts that are there, read other rows from the source, and take over when that process ends.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.cache.cache import Cache, CacheEntry, CacheFull, cache_key
from flatout.data.cache.compression import check_compression
from flatout.data.cache.part_list import PartList
from flatout.data.cache.parts import CacheFile, PackedRows, bound_bytes, encode
from flatout.data.cache.records import Array, RecordLayout, bytes_of, starts
from flatout.data.offers import Take
from flatout.data.source import Batch, Source

_PART_BYTES = 64 << 20
_PARTS_WAITING = 2
_LOOK_AGAIN_S = 1.0


class MappedStore:
    """Owns the entry: `close` closes it. With `wait`, `put` waits for the disk instead of dropping rows."""

    in_memory = False

    def __init__(
        self, entry: CacheEntry, source: Source, *, compression: str = "none", part_bytes: int = _PART_BYTES, wait: bool = False
    ) -> None:
        self._entry = entry
        self._rows = len(source)
        self._layout = RecordLayout.of(source.schema)
        self._compression = check_compression(compression)
        self._part_bytes = part_bytes
        self._wait = wait
        self._parts = PartList(self._layout, self._rows)
        self._loaded: set[Path] = set()
        self._reasons: list[str] = []
        self._one_at_a_time = threading.Lock()
        self._claimed = np.zeros(self._rows, bool)  # stored, or waiting to be written
        self._unclaimed = self._rows
        self._buffer: list[PackedRows] = []
        self._buffer_bytes = 0
        self._jobs: queue.Queue[list[PackedRows] | None] = queue.Queue(maxsize=_PARTS_WAITING)
        self._writer: threading.Thread | None = None
        self._filling = self._stopped = False
        self._look(first=True)

    @property
    def degraded(self) -> list[str]:
        return [*self._reasons, *self._parts.damaged]

    @property
    def complete(self) -> bool:
        return self._parts.count == self._rows

    @property
    def sound(self) -> bool:
        return self._parts.sound

    def has(self, rows: Tensor) -> Tensor:
        here = self._parts.has(rows)
        if not here.numpy().all():
            self._hand_over()
            if not self._filling and not self._stopped and time.monotonic() - self._looked_s > _LOOK_AGAIN_S:
                self._look()
                here = self._parts.has(rows)
        lost = self._parts.check(rows)
        if len(lost):
            with self._one_at_a_time:
                self._unclaimed += int(self._claimed[lost].sum())
                self._claimed[lost] = False
        return self._parts.has(rows) if len(lost) else here

    def put(self, rows: Tensor, batch: Batch, passing: Tensor | None = None) -> None:
        sizes = self._layout.sizes(batch, len(rows))
        wanted = rows.numpy()
        if not self._filling or self._stopped:
            return
        with self._one_at_a_time:
            if self._buffer_bytes >= self._part_bytes and self._jobs.full() and not self._wait:
                return  # the disk is too slow
            picked = np.unique(wanted, return_index=True)[1]  # each row once
            picked = picked[~self._claimed[wanted[picked]]]
            picked = picked if passing is None else picked[~passing.numpy()[picked]]
            self._claimed[wanted[picked]] = True
            self._unclaimed -= len(picked)
        if len(picked):
            piece = self._copied(wanted, picked, sizes, batch)
            with self._one_at_a_time:
                self._buffer.append(piece)
                self._buffer_bytes += piece.nbytes
        self._hand_over(wait=self._wait)

    def read(self, rows: Tensor, take: Take | None = None) -> Batch:
        return self._parts.read(rows, take)

    def stored(self) -> dict[str, Tensor]:
        rows = torch.arange(self._rows)
        here = self.has(rows)
        if not bool(here.all()):
            raise UsageError(f"{int((~here).sum())} of {self._rows} rows are not in the store yet: read them first")
        return self.read(rows)

    def flush(self) -> None:
        """Returns when all rows that were put are on disk, unless `degraded` says why not."""
        self._hand_over(wait=True, all_of_it=True)
        self._jobs.join()

    def close(self) -> None:
        """Writes waiting rows and releases the entry. Mapped parts can still be read."""
        self.flush()
        self._stopped = True
        if self._writer is not None:
            self._jobs.put(None)
            self._writer.join()
            self._writer = None
        self._entry.close()

    def _look(self, first: bool = False) -> None:
        """Load new parts, also those of other processes, and try to become the process that adds parts."""
        with self._one_at_a_time:
            self._looked_s = time.monotonic()
            try:
                self._filling = self._entry.take_filling()
            except OSError as error:
                self._stop(f"it can't be written ({error.strerror or error})")
            for path in self._entry.part_paths():
                if path not in self._loaded:
                    self._load(path, instead=first)
            self._claimed = self._parts.has().numpy()
            self._unclaimed = self._rows - int(self._claimed.sum())

    def _load(self, path: Path, instead: bool) -> None:
        self._loaded.add(path)
        try:
            part = CacheFile(path, self._layout)
            if not 0 <= int(part.rows.min()) <= int(part.rows.max()) < self._rows:
                raise DataError(f"{path} has row numbers beyond the {self._rows} rows of the source")
        except (DataError, OSError, ValueError, LookupError) as error:
            self._reasons.append(f"{error}: its rows are read from the source again")
            if self._filling:
                path.unlink(missing_ok=True)
            return
        self._parts.add(part, instead=instead)

    def _copied(self, wanted: Array, picked: Array, sizes: Array, batch: Batch) -> PackedRows:
        begins = starts(sizes)
        items = []
        for name, column in self._layout.ragged.items():
            content, width = bytes_of(batch[name]), column.dtype.itemsize
            runs = [content[begins[one] * width : (begins[one] + sizes[one]) * width] for one in picked.tolist()]
            items.append(np.concatenate(runs))
        return PackedRows(wanted[picked], self._layout.records(batch, picked), sizes[picked], items)

    def _hand_over(self, wait: bool = False, all_of_it: bool = False) -> None:
        """Give the buffer to the writer when it fills a part or no row is missing."""
        with self._one_at_a_time:
            if self._stopped:
                self._buffer, self._buffer_bytes = [], 0
            due = all_of_it or self._buffer_bytes >= self._part_bytes or not self._unclaimed
            if not self._buffer or not due:
                return
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name="flatout-cache", daemon=True)
                self._writer.start()
            job = self._buffer
            try:
                self._jobs.put_nowait(job)
                wait = False
            except queue.Full:
                if not wait:
                    return
            self._buffer, self._buffer_bytes = [], 0
        if wait:
            self._jobs.put(job)

    def _write_all(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if job is None:
                    return
                if not self._stopped:
                    self._write(job)
            except CacheFull as full:
                self._stop(str(full))
            except Exception as error:  # training continues without the cache
                why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self._stop(f"{type(error).__name__}: {why}")
            finally:
                job = None  # frees its memory while the thread waits
                self._jobs.task_done()

    def _write(self, pieces: list[PackedRows]) -> None:
        path = self._entry.write_part(encode(pieces, self._layout, self._compression), bound_bytes(pieces))
        self._loaded.add(path)
        self._parts.add(CacheFile(path, self._layout), trusted=True)

    def _stop(self, why: str) -> None:
        self._stopped = True
        where = self._entry.cache_folder
        self._reasons.append(f"the cache in {where} takes no more rows ({why}): other rows are read from the source every time")


def cached_rows(cache: Cache, source: Source, preparation: str = "") -> int:
    """How many rows of the source the cache has, by the indexes of its parts. Reads no rows."""
    parts = PartList(RecordLayout.of(source.schema), len(source))
    for part in _parts(cache, source, preparation):
        parts.add(part)
    return parts.count


def cached_compression(cache: Cache, source: Source, preparation: str = "") -> str | None:
    """How the cached rows of the source are compressed; None: no rows are cached."""
    parts = _parts(cache, source, preparation)
    return str(parts[-1].compression) if parts else None


def _parts(cache: Cache, source: Source, preparation: str) -> list[CacheFile]:
    entry = cache.open(cache_key(source, preparation))
    if entry is None:
        return []
    parts = []
    try:
        for path in entry.part_paths():
            with suppress(DataError, OSError, ValueError, LookupError):
                parts.append(CacheFile(path, RecordLayout.of(source.schema)))
    finally:
        entry.close()
    return parts
