"""All parts of a cache entry as one list of records, and the place of each row in it.

The checksum of a granule is verified before any of its rows is read for the first time. Rows of a damaged granule count as
missing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.cache.parts import CacheFile
from flatout.data.cache.records import LARGE_BYTES, Array, RecordLayout, bytes_of, pick, plain, starts
from flatout.data.offers import Take
from flatout.data.source import Batch
from flatout.machine.host import free_host_bytes

_DECOMPRESSED_BYTES = 32 << 20
_UNKNOWN, _GOOD, _BAD = 0, 1, 2


@dataclass(frozen=True)
class _Index:
    """Immutable, and replaced when a part is added, so that readers in other threads see a consistent one."""

    parts: tuple[CacheFile, ...]
    first: Array  # the number of each part's first record, and of its first granule
    first_granule: Array
    per_granule: Array
    state: Array  # of each granule

    def locate(self, numbers: Array) -> tuple[Array, Array]:
        """(part, number in that part) of each record."""
        part = np.searchsorted(self.first, numbers, side="right") - 1
        return part, numbers - self.first[part]

    def granules(self, numbers: Array) -> Array:
        """The granules of these records, counted over all parts, each once."""
        part, local = self.locate(numbers)
        return np.unique(self.first_granule[part] + local // self.per_granule[part])

    def granule(self, number: int) -> tuple[int, int]:
        """(part, number of the granule in that part)."""
        part = int(np.searchsorted(self.first_granule, number, side="right")) - 1
        return part, number - int(self.first_granule[part])

    def with_part(self, part: CacheFile, records: int, state: int) -> _Index:
        return _Index(
            (*self.parts, part),
            np.append(self.first, records),
            np.append(self.first_granule, len(self.state)),
            np.append(self.per_granule, part.per_granule),
            np.append(self.state, np.full(part.granules, state, np.uint8)),
        )

    def read_ahead(self, granules: Array) -> None:
        for number in granules.tolist():
            part, granule = self.granule(number)
            self.parts[part].will_need(granule)


class PartList:
    """Any number of threads may read while parts are added."""

    def __init__(self, layout: RecordLayout, rows: int) -> None:
        self.count = 0  # rows that are here
        self.damaged: list[str] = []
        self._layout = layout
        self._place = np.full(rows, -1, np.int64)  # the number of a row's record; -1: not here
        none = np.zeros(0, np.int64)
        self._index = _Index((), none, none, none, np.zeros(0, np.uint8))
        self._records = 0
        self._all_checked = True
        self._larger_than_memory = False
        self._decompressed = _Recent(_DECOMPRESSED_BYTES)
        self._one_at_a_time = threading.Lock()

    def add(self, part: CacheFile, *, trusted: bool = False, instead: bool = True) -> None:
        """`trusted`: this process has just written it. `instead`: it replaces rows that are here already.

        Don't use `instead` once rows are read: a row must not move to an unchecked granule between `check` and `read`.
        """
        with self._one_at_a_time:
            rows = part.rows.astype(np.int64)
            numbers = np.arange(self._records, self._records + part.count)
            new = self._place[rows] < 0
            if not instead:
                rows, numbers = rows[new], numbers[new]
            self._index = self._index.with_part(part, self._records, _GOOD if trusted else _UNKNOWN)
            self._all_checked &= trusted
            self._place[rows] = numbers
            self.count += int(new.sum())
            self._records += part.count
            self._larger_than_memory = sum(one.bytes.nbytes for one in self._index.parts) > free_host_bytes()

    @property
    def sound(self) -> bool:
        """Whether all rows are here and all checksums were verified."""
        return self._all_checked and self.count == len(self._place)

    def has(self, rows: Tensor | None = None) -> Tensor:
        """A bool for each of the rows (default: all rows), before checksums are verified."""
        return torch.from_numpy((self._place if rows is None else self._place[rows.numpy()]) >= 0)

    def check(self, rows: Tensor) -> Array:
        """Verify checksums of rows that were never read. Returns the rows that turned out to be damaged."""
        if self._all_checked:
            return np.zeros(0, np.int64)
        numbers = self._place[rows.numpy()]
        index = self._index
        granules = index.granules(numbers[numbers >= 0])
        unknown = granules[index.state[granules] == _UNKNOWN]
        index.read_ahead(unknown)
        lost = [np.zeros(0, np.int64)]
        for number in unknown.tolist():
            part, granule = index.granule(number)
            good = index.parts[part].check(granule)
            if not good:
                lost.append(self._lose(index, part, granule))
            index.state[number] = _GOOD if good else _BAD
        with self._one_at_a_time:
            self._all_checked = not bool((self._index.state == _UNKNOWN).any())
        return np.concatenate(lost)

    def read(self, rows: Tensor, take: Take | None = None) -> Batch:
        numbers = self._place[rows.numpy()]
        if (numbers < 0).any():
            raise UsageError(f"row {int(rows[int((numbers < 0).argmax())])} is not in the store: ask has() first")
        index = self._index  # after the places: it contains every part they point to
        if self._larger_than_memory:
            index.read_ahead(index.granules(numbers))
        found = _Found(self._layout, len(numbers), take)
        if len(index.parts) == 1:
            self._find(index.parts[0], np.arange(len(numbers)), numbers, found)
        else:
            part, local = index.locate(numbers)
            for one in np.unique(part).tolist():
                chosen = np.flatnonzero(part == one)
                self._find(index.parts[one], chosen, local[chosen], found)
        return found.batch()

    def _find(self, part: CacheFile, places: Array, numbers: Array, found: _Found) -> None:
        """Copy these records of one part to their places in a batch, and note where their ragged runs are."""
        if part.compression != "none":
            self._find_compressed(part, places, numbers, found)
        elif not self._layout.ragged:
            found.add_records(places, part.records, numbers)
        else:
            found.add_records(places, part.records_at(numbers), None)
            runs, found.sizes[places] = part.runs_at(numbers)
            begins = part.begins(numbers)
            found.add_runs(part.bytes, places, [run + begins for run in runs])

    def _find_compressed(self, part: CacheFile, places: Array, numbers: Array, found: _Found) -> None:
        runs, found.sizes[places] = part.runs_at(numbers)
        granules = numbers // part.per_granule
        order = np.argsort(granules, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(granules[order])) + 1):
            granule = int(granules[some[0]])
            content = self._content(part, granule)
            found.add_records(places[some], part.records_in(content, granule), numbers[some] % part.per_granule)
            found.add_runs(content, places[some], [run[some] for run in runs])

    def _content(self, part: CacheFile, granule: int) -> Array:
        key = (part.path.name, granule)
        content = self._decompressed.get(key)
        if content is None:
            content = part.decompressed(granule)
            self._decompressed.keep(key, content)
        return content

    def _lose(self, index: _Index, part: int, granule: int) -> Array:
        harmed = index.parts[part]
        first, last = harmed.members(granule)
        rows: Array = harmed.rows[first:last].astype(np.int64)
        number = int(index.first[part])
        with self._one_at_a_time:
            rows = rows[self._place[rows] == np.arange(number + first, number + last)]  # not those of a later part
            self._place[rows] = -1
            self.count -= len(rows)
            why = f"{harmed.path} is damaged: rows with a wrong checksum are read from the source again"
            if why not in self.damaged:
                self.damaged.append(why)
        return rows


class _Found:
    """A batch that is being collected. Ragged runs are copied last, when the sizes of all rows are known."""

    def __init__(self, layout: RecordLayout, rows: int, take: Take | None) -> None:
        self._layout, self._take = layout, take
        self.sizes = np.zeros(rows, np.int64)
        self._fixed = layout.room(rows, take)
        self._targets = {name: plain(column) for name, column in self._fixed.items()}
        self._runs: list[tuple[Array, Array, list[Array]]] = []

    def add_records(self, places: Array, records: Array, numbers: Array | None) -> None:
        """The records of these numbers, or all of them."""
        where = slice(None) if len(places) == len(self.sizes) else places
        if numbers is not None and records.itemsize < LARGE_BYTES:  # whole records first: picking each column costs twice that
            records, numbers = records.take(numbers), None
        for name, target in self._targets.items():
            if numbers is None:
                target[where] = records[name]
            else:
                pick(target, where, records[name], numbers)

    def add_runs(self, content: Array, places: Array, runs: list[Array]) -> None:
        self._runs.append((content, places, runs))

    def batch(self) -> Batch:
        if not self._layout.ragged:
            return self._fixed
        flat = self._layout.flat(self.sizes, self._take)
        begins = starts(self.sizes)
        for column, (name, kind) in enumerate(self._layout.ragged.items()):
            target, width = bytes_of(flat[name]), kind.dtype.itemsize
            for content, places, runs in self._runs:
                spans = np.stack([begins[places] * width, runs[column], self.sizes[places] * width], axis=1)
                for begin, first, size in spans.tolist():
                    target[begin : begin + size] = content[first : first + size]
        return {**self._fixed, **flat}


class _Recent:
    """The granules that were decompressed last."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[tuple[str, int], Array] = OrderedDict()
        self._bytes = 0
        self._one_at_a_time = threading.Lock()

    def get(self, key: tuple[str, int]) -> Array | None:
        with self._one_at_a_time:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: tuple[str, int], content: Array) -> None:
        with self._one_at_a_time:
            if key not in self._kept:
                self._kept[key] = content
                self._bytes += content.nbytes
            while self._bytes > self._limit_bytes and self._kept:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
