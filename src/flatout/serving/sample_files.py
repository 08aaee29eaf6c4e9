"""Sampled requests in Parquet files, written by a thread: FOLDER/model=NAME/version=V/PID-NUMBER.parquet.

A request never waits for the disk. Samples that the memory for them can't hold are dropped and counted.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from flatout.serving.front.model_view import ModelView
from flatout.serving.front.sampling_desk import SampledRequest
from flatout.serving.sample_tables import SampleTable

_LOOK_S = 0.25
_AT_ONCE = 256  # rows become columns together: more would keep the event loop from running for milliseconds
_VALUE_BYTES = 64  # of a number or text as a Python object, about


@dataclass(frozen=True)
class SampleSizes:
    """A file is written when it has `file_rows`, `file_bytes`, or is `file_s` old. `held_bytes` may wait in memory."""

    file_rows: int = 50_000
    file_bytes: int = 32 << 20
    file_s: float = 60.0
    held_bytes: int = 64 << 20


@dataclass
class _Waiting:
    """Rows of one model that are in no file yet."""

    table: SampleTable
    place: Path
    began_s: float
    batches: list[pa.RecordBatch] = field(default_factory=list)
    requests: int = 0
    rows: int = 0
    nbytes: int = 0
    held_bytes: int = 0


class SampleFiles:
    """`say` gets a sentence when samples are lost, once for each reason; it may be called by the thread."""

    def __init__(self, folder: Path, share: float, say: Callable[[str], None], sizes: SampleSizes | None = None) -> None:
        self._folder, self._share, self._say, self._sizes = folder, share, say, sizes or SampleSizes()
        self._random = random.Random()
        self._given: deque[tuple[SampledRequest, int]] = deque()
        self._given_bytes = self._released_bytes = 0  # each is written by one thread only
        self._too_many = self._failed = self.kept = 0
        self._said: set[str] = set()
        self._waiting: dict[int, tuple[ModelView, _Waiting]] = {}
        self._numbers = count(time.time_ns() // 1_000_000)  # a later process may have the same id
        self._look, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._write_all, name="flatout-samples", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._too_many + self._failed

    def wants(self) -> bool:
        return self._random.random() < self._share

    def keep(self, sample: SampledRequest) -> None:
        size = _size(sample)
        held = self._given_bytes - self._released_bytes
        if held + size > self._sizes.held_bytes:
            self._too_many += 1
            self._tell("full", f"samples are dropped: {self._folder} is too slow for them, or they are too large")
            return
        self._given_bytes += size
        self._given.append((sample, size))
        if held + size > self._sizes.held_bytes // 2:
            self._look.set()

    def close(self, limit_s: float = 10.0) -> None:
        """Writes what is there. Waits, so not in the event loop."""
        self._over = True
        self._look.set()
        self._thread.join(limit_s)
        if self.dropped:
            self._say(f"{self.kept:,} sampled requests are in {self._folder}; {self.dropped:,} were dropped")

    # ---- in the thread ----

    def _write_all(self) -> None:
        while True:
            self._look.wait(_LOOK_S)
            self._look.clear()
            over = self._over  # before the last look: what came until then is written
            self._gather()
            crowded = self._given_bytes - self._released_bytes > self._sizes.held_bytes // 2
            for key, (_, waiting) in tuple(self._waiting.items()):
                if over or crowded or self._is_due(waiting):
                    del self._waiting[key]
                    self._write(waiting)
            if over:
                return

    def _is_due(self, waiting: _Waiting) -> bool:
        sizes, age_s = self._sizes, time.monotonic() - waiting.began_s
        return waiting.rows >= sizes.file_rows or waiting.nbytes >= sizes.file_bytes or age_s >= sizes.file_s

    def _gather(self) -> None:
        """What came becomes columns."""
        by_view: dict[int, tuple[_Waiting, list[SampledRequest], int]] = {}
        while self._given:
            sample, size = self._given.popleft()
            waiting = self._waiting_of(sample.view)
            waiting.held_bytes += size
            _, some, rows = by_view.pop(id(waiting), (waiting, [], 0))
            some.append(sample)
            if rows + sample.rows >= _AT_ONCE:
                self._convert(waiting, some)
            else:
                by_view[id(waiting)] = waiting, some, rows + sample.rows
        for waiting, some, _ in by_view.values():
            self._convert(waiting, some)

    def _waiting_of(self, view: ModelView) -> _Waiting:
        found = self._waiting.get(id(view))
        if found is None:
            place = self._folder / f"model={quote(view.name, safe='')}" / f"version={quote(view.version, safe='')}"
            found = self._waiting[id(view)] = view, _Waiting(SampleTable(view), place, time.monotonic())
        return found[1]

    def _convert(self, waiting: _Waiting, samples: Sequence[SampledRequest]) -> None:
        try:
            batch = waiting.table.batch(samples)
        except Exception as error:
            if len(samples) > 1:  # only those at fault are dropped
                for sample in samples:
                    self._convert(waiting, [sample])
                return
            self._failed += 1
            self._tell("odd", f"a sample is dropped: it can't be written as a table: {type(error).__name__}: {error}")
            return
        waiting.batches.append(batch)
        waiting.requests += len(samples)
        waiting.rows += batch.num_rows
        waiting.nbytes += batch.nbytes

    def _write(self, waiting: _Waiting) -> None:
        name = f"{os.getpid()}-{next(self._numbers)}.parquet"
        unfinished = waiting.place / f".{name}.unfinished"  # readers skip names that begin with a dot
        try:
            if waiting.batches:
                waiting.place.mkdir(parents=True, exist_ok=True)
                table = pa.Table.from_batches(waiting.batches, waiting.table.schema)
                parquet.write_table(table, unfinished, compression="zstd")
                unfinished.rename(waiting.place / name)
                self.kept += waiting.requests
        except (OSError, pa.ArrowException) as error:
            self._failed += waiting.requests
            self._tell("disk", f"samples are dropped: {waiting.place} can't be written: {error}")
            with suppress(OSError):
                unfinished.unlink()
        finally:
            self._released_bytes += waiting.held_bytes

    def _tell(self, reason: str, line: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            self._say(line)


def _size(sample: SampledRequest) -> int:
    return sum(map(_column_bytes, (*sample.inputs.values(), *sample.answers.values())))


def _column_bytes(column: Any) -> int:
    """About how much memory it takes. Quick: a list is judged by its first value, photos and texts by all."""
    if isinstance(column, np.ndarray):
        return column.nbytes
    if not isinstance(column, list | tuple) or not column:
        return _VALUE_BYTES
    first = column[0]
    if isinstance(first, bytes | str):
        return _VALUE_BYTES * len(column) + sum(len(one) for one in column if isinstance(one, bytes | str))
    return len(column) * (_column_bytes(first) if isinstance(first, list | tuple | np.ndarray) else _VALUE_BYTES)
