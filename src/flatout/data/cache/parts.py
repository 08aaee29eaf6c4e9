"""A part of the cache: one file with some of the rows and their checksums.

A part consists of granules, each about 64 kB or one larger row: the records of its rows, then the items of each ragged column.
Checksums and compression are per granule, so reading one row costs one granule, not the whole part. After the granules come an
index (row numbers, items per row, where granules end, their checksums) and a trailer that says where the index is. A part is
written at once and renamed, so a file with that name is complete.
"""

from __future__ import annotations

import bisect
import ctypes
import json
import mmap
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.base.errors import DataError
from flatout.data.cache.compression import BLOCK_BYTES, compress, decompress
from flatout.data.cache.records import Array, RecordLayout, record_content

_TRAILER = struct.Struct("<8sQQI")  # magic, bytes of granules, bytes of index, checksum of the index; then a checksum of these
_TRAILER_BYTES = _TRAILER.size + 4
_MAGIC = b"flatout1"
_FEW_BYTES = 256  # of a record: all are copied by one call, which needs an index of 8 bytes for each byte


@dataclass(frozen=True)
class PackedRows:
    """Rows to be written to a part."""

    rows: Array  # int64 [k]
    records: Array  # [k] of the layout's record
    sizes: Array  # int64 [k]
    items: Sequence[Array]  # uint8 [sum of sizes * itemsize] for each ragged column, all rows

    @property
    def nbytes(self) -> int:
        return int(self.records.nbytes + sum(flat.nbytes for flat in self.items) + 16 * len(self.rows))


def bound_bytes(pieces: Sequence[PackedRows]) -> int:
    """An upper bound for a part of these rows, even if they don't compress."""
    kept_bytes = sum(piece.nbytes for piece in pieces)
    return kept_bytes + kept_bytes // 64 + 64 * sum(len(piece.rows) for piece in pieces) + 4096


def encode(pieces: Sequence[PackedRows], layout: RecordLayout, compression: str) -> Iterator[Any]:
    """The content of the file, piece by piece, without a copy of it."""
    rows, sizes = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("rows", "sizes"))
    count, ends = len(rows), np.append(0, np.cumsum(sizes))
    per_granule = max(1, BLOCK_BYTES * count // max(1, sum(piece.nbytes for piece in pieces)))
    columns = [_EndToEnd([record_content(piece.records) for piece in pieces])]
    columns += [_EndToEnd(flats) for flats in zip(*(piece.items for piece in pieces), strict=True)]
    widths = [column.dtype.itemsize for column in layout.ragged.values()]
    checksums, lengths = [], []
    for first in range(0, count, per_granule):
        last = min(first + per_granule, count)
        spans = [(first * layout.record_bytes, last * layout.record_bytes)]
        spans += [(int(ends[first]) * width, int(ends[last]) * width) for width in widths]
        content = [one for column, span in zip(columns, spans, strict=True) for one in column.between(*span)]
        if compression != "none":
            content = [compress(np.concatenate([np.zeros(0, np.uint8), *content]), compression)]
        checksums.append(checksum(*content))
        lengths.append(sum(map(len, content)))
        yield from content
    data_bytes = sum(lengths)
    padding = bytes(-data_bytes % 8)
    yield padding
    head = json.dumps({"rows": count, "per_granule": per_granule, "compression": compression}).encode()
    head += b" " * (-(len(head) + 1) % 8) + b"\n"
    tables = (rows, ends, np.cumsum([0, *lengths]), np.array(checksums, np.uint32))
    index = head + b"".join(table.astype(table.dtype.newbyteorder("<")).tobytes() for table in tables)
    yield index
    trailer = _TRAILER.pack(_MAGIC, data_bytes + len(padding), len(index), zlib.crc32(index))
    yield trailer + zlib.crc32(trailer).to_bytes(4, "little")


class _EndToEnd:
    """Several byte arrays, addressed as one."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays]).tolist()

    def between(self, begin: int, end: int) -> Iterator[Array]:
        which = bisect.bisect_right(self._ends, begin)
        while begin < end:
            array, first = self._arrays[which], self._ends[which] - len(self._arrays[which])
            yield array[begin - first : end - first]
            begin, which = self._ends[which], which + 1


def checksum(*content: Array) -> int:
    """One checksum of all arrays in order."""
    found = 0
    for one in content:
        found = zlib.crc32(one.data, found)
    return found


class CacheFile:
    """A part, memory-mapped: the kernel drops its pages when memory is short."""

    def __init__(self, path: Path, layout: RecordLayout) -> None:
        """DataError when the file is not a complete part of this layout. Granules are checked later, by `check`."""
        self.path = path
        size = path.stat().st_size
        if size < _TRAILER_BYTES:
            raise DataError(f"{path} is truncated: {size} bytes")
        # torch's mapping holds no file descriptor; a process may be limited to a thousand
        self._content = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        self.bytes: Array = self._content.numpy()
        trailer = self.bytes[size - _TRAILER_BYTES :].tobytes()
        magic, data_bytes, index_bytes, index_sum = _TRAILER.unpack(trailer[: _TRAILER.size])
        unharmed = magic == _MAGIC and zlib.crc32(trailer[: _TRAILER.size]).to_bytes(4, "little") == trailer[_TRAILER.size :]
        if not unharmed or data_bytes + index_bytes + _TRAILER_BYTES != size:
            raise DataError(f"{path} is damaged or truncated: it does not end like a part of the cache")
        index = self.bytes[data_bytes : data_bytes + index_bytes]
        if checksum(index) != index_sum:
            raise DataError(f"{path} is damaged: wrong checksum of its index")
        self._read_index(index, layout)

    def _read_index(self, index: Array, layout: RecordLayout) -> None:
        tables = int(np.flatnonzero(index[:4096] == ord("\n"))[0]) + 1
        head = json.loads(index[:tables].tobytes())
        self.count, self.per_granule, self.compression = head["rows"], head["per_granule"], head["compression"]
        granules = -(-self.count // self.per_granule)
        longs = index[tables : tables + 8 * (2 * self.count + 1 + granules + 1)].view("<i8")
        self.rows, self.ends, self._offsets = np.split(longs, [self.count, 2 * self.count + 1])
        self._checksums = index[tables + longs.nbytes :].view("<u4")
        self._record = layout.record
        self._record_bytes = layout.record_bytes
        self._widths = [column.dtype.itemsize for column in layout.ragged.values()]
        self._item_bytes = layout.item_bytes
        self.granules = granules

    @cached_property
    def records(self) -> Array:
        """All records of a part that is not compressed and has no ragged columns: nothing else is stored there."""
        return self._as_records(self.bytes[: self.count * self._record_bytes], self.count)

    def records_at(self, numbers: Array) -> Array:
        """Copies of these records of a part that is not compressed."""
        begins = self.begins(numbers) + numbers % self.per_granule * self._record_bytes
        if self._record_bytes <= _FEW_BYTES:
            content = self.bytes[begins[:, None] + np.arange(self._record_bytes)]
        else:
            content = np.stack([self.bytes[begin : begin + self._record_bytes] for begin in begins.tolist()])
        return self._as_records(content.reshape(-1), len(numbers))

    def runs_at(self, numbers: Array) -> tuple[list[Array], Array]:
        """Of these records: where the run of each ragged column begins in its granule, and how many items it has."""
        first = numbers - numbers % self.per_granule
        last = np.minimum(first + self.per_granule, self.count)
        before, items = self.ends[first], self.ends[last] - self.ends[first]
        begin = (last - first) * self._record_bytes
        runs = []
        for width in self._widths:
            runs.append(begin + (self.ends[numbers] - before) * width)
            begin = begin + items * width
        return runs, self.ends[numbers + 1] - self.ends[numbers]

    def begins(self, numbers: Array) -> Array:
        """Where in the file the granule of each record begins."""
        found: Array = self._offsets[numbers // self.per_granule]
        return found

    def members(self, granule: int) -> tuple[int, int]:
        """[first, last) of its records."""
        first = granule * self.per_granule
        return first, min(first + self.per_granule, self.count)

    def check(self, granule: int) -> bool:
        begin, end = self._span(granule)
        return checksum(self.bytes[begin:end]) == int(self._checksums[granule])

    def will_need(self, granule: int) -> None:
        """Ask the kernel to read it ahead, together with others: page faults would come one after the other."""
        begin, end = self._span(granule)
        begin -= begin % mmap.PAGESIZE
        _libc().madvise(ctypes.c_void_p(self._content.data_ptr() + begin), ctypes.c_size_t(end - begin), mmap.MADV_WILLNEED)

    def decompressed(self, granule: int) -> Array:
        begin, end = self._span(granule)
        first, last = self.members(granule)
        items = int(self.ends[last] - self.ends[first])
        size = (last - first) * self._record_bytes + items * self._item_bytes
        return decompress(self.bytes[begin:end], self.compression, size)

    def records_in(self, content: Array, granule: int) -> Array:
        """The records of a granule's decompressed content."""
        first, last = self.members(granule)
        return self._as_records(content[: (last - first) * self._record_bytes], last - first)

    def _as_records(self, content: Array, count: int) -> Array:
        return content.view(self._record) if self._record_bytes else np.empty(count, self._record)

    def _span(self, granule: int) -> tuple[int, int]:
        """[begin, end) in the file."""
        return int(self._offsets[granule]), int(self._offsets[granule + 1])


@lru_cache(maxsize=1)
def _libc() -> Any:
    return ctypes.CDLL(None)
