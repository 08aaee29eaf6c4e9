"""All parts of a cache entry as one list of records, and which row is where in it.

A granule is compared with its checksum before any of its rows is read for the first time. What does not fit is not here.
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
from flatout.data.cache.records import Array, RecordLayout, bytes_of, starts
from flatout.data.offers import Take
from flatout.data.source import Batch
from flatout.machine.host import free_host_bytes

_DECOMPRESSED_BYTES = 32 << 20
_FEW_BYTES = 256  # of a record: all are picked by one call, for which each byte needs an index of eight
_UNKNOWN, _GOOD, _BAD = 0, 1, 2


@dataclass(frozen=True)
class _Index:
    """Replaced as a whole when a part comes, so that whoever reads keeps what is consistent."""

    parts: tuple[CacheFile, ...]
    first: Array  # the number of each part's first record, and of its first granule
    first_granule: Array
    per_granule: Array
    state: Array  # of each granule

    def locate(self, numbers: Array) -> tuple[Array, Array, Array]:
        """(part, place in it, granule as counted over all parts) of each record."""
        part = np.searchsorted(self.first, numbers, side="right") - 1
        local = numbers - self.first[part]
        return part, local, self.first_granule[part] + local // self.per_granule[part]

    def granule(self, number: int) -> tuple[int, int]:
        """(part, granule as counted in it)."""
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
    """Any number of threads read; parts may come meanwhile."""

    def __init__(self, layout: RecordLayout, rows: int) -> None:
        self.count = 0  # rows that are here
        self.damaged: list[str] = []
        self._layout = layout
        self._place = torch.full((rows,), -1, dtype=torch.int64)  # the number of a row's record; -1: not here
        none = np.zeros(0, np.int64)
        self._index = _Index((), none, none, none, np.zeros(0, np.uint8))
        self._records = 0
        self._all_checked = True
        self._larger_than_memory = False
        self._decompressed = _Recent(_DECOMPRESSED_BYTES)
        self._one_at_a_time = threading.Lock()

    def add(self, part: CacheFile, *, trusted: bool = False, instead: bool = True) -> None:
        """`trusted`: this process has just written it. `instead`: it also counts for rows that are here already.

        Not so once rows are read: between `check` and `read` a row must not move to where nobody has compared checksums.
        """
        with self._one_at_a_time:
            rows = torch.from_numpy(part.rows.astype(np.int64))
            numbers = torch.arange(self._records, self._records + part.count)
            new = self._place[rows] < 0
            if not instead:
                rows, numbers = rows[new], numbers[new]
            self._index = self._index.with_part(part, self._records, _GOOD if trusted else _UNKNOWN)
            self._all_checked &= trusted
            self._place[rows] = numbers
            self.count += int(new.sum())
            self._records += part.count
            self._larger_than_memory = sum(one.bytes.nbytes for one in self._index.parts) > free_host_bytes()

    def has(self, rows: Tensor | None = None) -> Tensor:
        """A bool for each row (all of them, by default), whatever its checksum will say."""
        return (self._place if rows is None else self._place.index_select(0, rows)) >= 0

    def check(self, rows: Tensor) -> Array:
        """Compare checksums of those rows that were never read; the rows that are lost by that."""
        if self._all_checked:
            return np.zeros(0, np.int64)
        numbers = self._place.index_select(0, rows).numpy()
        index = self._index
        granules = np.unique(index.locate(numbers[numbers >= 0])[2])
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
        numbers = self._place.index_select(0, rows).numpy()
        if (numbers < 0).any():
            raise UsageError(f"row {int(rows[int((numbers < 0).argmax())])} is not in the store: ask has() first")
        index = self._index  # after the places: it has all the parts that they speak of
        part, local, granule = index.locate(numbers)
        if self._larger_than_memory:
            index.read_ahead(np.unique(granule))
        found = _Found(self._layout, len(rows))
        for one in np.unique(part).tolist():
            self._find(index.parts[one], np.flatnonzero(part == one), local, found)
        return found.columns(take)

    def _find(self, part: CacheFile, chosen: Array, local: Array, found: _Found) -> None:
        """Where the rows of one part are: in its mapping, or in granules that are decompressed."""
        if part.compression == "none" and not self._layout.ragged:  # then they lie there like the rows of a matrix
            found.records[chosen] = np.take(part.all_records(), local[chosen], axis=0, mode="clip")
            return
        records, runs, sizes = part.spots(local[chosen])
        found.sizes[chosen] = sizes
        if part.compression == "none":
            begins = part.begins(local[chosen])
            found.add(part.bytes, chosen, records + begins, [run + begins for run in runs])
            return
        granules = local[chosen] // part.per_granule
        order = np.argsort(granules, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(granules[order])) + 1):
            content = self._content(part, int(granules[some[0]]))
            found.add(content, chosen[some], records[some], [run[some] for run in runs])

    def _content(self, part: CacheFile, granule: int) -> Array:
        key = (part.path.name, granule)
        content = self._decompressed.get(key)
        if content is None:
            content = part.content(granule)
            self._decompressed.keep(key, content)
        return content

    def _lose(self, index: _Index, part: int, granule: int) -> Array:
        harmed = index.parts[part]
        first, last = harmed.members(granule)
        rows = torch.from_numpy(harmed.rows[first:last].astype(np.int64))
        number = int(index.first[part])
        with self._one_at_a_time:
            rows = rows[self._place[rows] == torch.arange(number + first, number + last)]  # not those that a later part has
            self._place[rows] = -1
            self.count -= len(rows)
            why = f"{harmed.path} is damaged: rows whose checksum does not fit are read from the source again"
            if why not in self.damaged:
                self.damaged.append(why)
        return rows.numpy()


class _Found:
    """Where each row of a batch lies: bytes, and places in them. Read when all are known, as only then their sizes are."""

    def __init__(self, layout: RecordLayout, rows: int) -> None:
        self._layout = layout
        self.sizes = np.zeros(rows, np.int64)
        self.records = np.empty((rows, layout.record_bytes), np.uint8)
        self._runs: list[tuple[Array, Array, list[Array]]] = []

    def add(self, content: Array, places: Array, records: Array, runs: list[Array]) -> None:
        width = self._layout.record_bytes
        if width <= _FEW_BYTES:
            self.records[places] = content[records[:, None] + np.arange(width)]
        else:
            for place, begin in zip(places.tolist(), records.tolist(), strict=True):
                self.records[place] = content[begin : begin + width]
        self._runs.append((content, places, runs))

    def columns(self, take: Take | None) -> Batch:
        flat = self._layout.flat(self.sizes, take)
        begins = starts(self.sizes)
        for column, (name, kind) in enumerate(self._layout.ragged.items()):
            target, width = bytes_of(flat[name]), kind.dtype.itemsize
            for content, places, runs in self._runs:
                spans = np.stack([begins[places] * width, runs[column], self.sizes[places] * width], axis=1)
                for begin, first, size in spans.tolist():
                    target[begin : begin + size] = content[first : first + size]
        return {**self._layout.columns(self.records, take), **flat}


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
