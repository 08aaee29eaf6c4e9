"""One part of a cache: some rows in one file, each stretch of them with its checksum.

A part is cut into granules of a few rows, about 64 kB or a single larger row: the records of its rows, then the items of each
ragged column. A granule is what is checked and compressed, so that a row costs what its granule costs, not the whole part.
After the granules comes an index (which rows, how many items, where granules end, their checksums) and a trailer that says
where the index is. All of it is written by one call; the file is whole or it is not a part.
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
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.base.errors import DataError
from flatout.data.cache.compression import BLOCK_BYTES, compress, decompress
from flatout.data.cache.records import Array, RecordLayout

_TRAILER = struct.Struct("<8sQQI")  # magic, bytes of granules, bytes of index, its checksum; then a checksum of these
_TRAILER_BYTES = _TRAILER.size + 4
_MAGIC = b"flatout1"


@dataclass(frozen=True)
class PackedRows:
    """Rows on their way into a part: `items` has the ragged columns' bytes of all rows, column by column."""

    rows: Array  # int64 [k]
    records: Array  # uint8 [k, record_bytes]
    sizes: Array  # int64 [k]
    items: Sequence[Array]  # uint8 [sum of sizes * itemsize] for each ragged column

    @property
    def nbytes(self) -> int:
        return int(self.records.nbytes + sum(flat.nbytes for flat in self.items) + 16 * len(self.rows))


def bound_bytes(pieces: Sequence[PackedRows]) -> int:
    """No part of these rows is larger, however badly they compress."""
    kept_bytes = sum(piece.nbytes for piece in pieces)
    return kept_bytes + kept_bytes // 64 + 64 * sum(len(piece.rows) for piece in pieces) + 4096


def encode(pieces: Sequence[PackedRows], layout: RecordLayout, compression: str) -> Iterator[Any]:
    """The content of the file, bit by bit, without making a copy of it."""
    rows, sizes = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("rows", "sizes"))
    count, ends = len(rows), np.append(0, np.cumsum(sizes))
    per_granule = max(1, BLOCK_BYTES * count // max(1, sum(piece.nbytes for piece in pieces)))
    columns = [_EndToEnd([piece.records.reshape(-1) for piece in pieces])]
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
    """Arrays of bytes as if they were one."""

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
    """Of all of it, end to end."""
    found = 0
    for one in content:
        found = zlib.crc32(one.data, found)
    return found


class CacheFile:
    """A part's file, memory-mapped. Its pages belong to the kernel, which drops them when memory is short."""

    def __init__(self, path: Path, layout: RecordLayout) -> None:
        """DataError when the file is not a whole part of this layout; the granules are looked at later, by `check`."""
        self.path = path
        size = path.stat().st_size
        if size < _TRAILER_BYTES:
            raise DataError(f"{path} is cut off: {size} bytes")
        # torch's mapping holds no file descriptor, of which a process may have only a thousand
        self._content = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        self.bytes: Array = self._content.numpy()
        trailer = self.bytes[size - _TRAILER_BYTES :].tobytes()
        magic, data_bytes, index_bytes, index_sum = _TRAILER.unpack(trailer[: _TRAILER.size])
        unharmed = magic == _MAGIC and zlib.crc32(trailer[: _TRAILER.size]).to_bytes(4, "little") == trailer[_TRAILER.size :]
        if not unharmed or data_bytes + index_bytes + _TRAILER_BYTES != size:
            raise DataError(f"{path} is damaged or cut off: its end is not the end of a part")
        index = self.bytes[data_bytes : data_bytes + index_bytes]
        if checksum(index) != index_sum:
            raise DataError(f"{path} is damaged: the checksum of its index does not fit")
        self._read_index(index, layout)

    def _read_index(self, index: Array, layout: RecordLayout) -> None:
        tables = int(np.flatnonzero(index[:4096] == ord("\n"))[0]) + 1
        head = json.loads(index[:tables].tobytes())
        self.count, self.per_granule, self.compression = head["rows"], head["per_granule"], head["compression"]
        granules = -(-self.count // self.per_granule)
        longs = index[tables : tables + 8 * (2 * self.count + 1 + granules + 1)].view("<i8")
        self.rows, self.ends, self._offsets = np.split(longs, [self.count, 2 * self.count + 1])
        self._checksums = index[tables + longs.nbytes :].view("<u4")
        self._record_bytes = layout.record_bytes
        self._widths = [column.dtype.itemsize for column in layout.ragged.values()]
        self._item_bytes = layout.item_bytes
        self.granules = granules

    def all_records(self) -> Array:
        """uint8 [count, record_bytes]: of a part that is not compressed and has no ragged columns, all that is in it."""
        return self.bytes[: self.count * self._record_bytes].reshape(self.count, self._record_bytes)

    def spots(self, records: Array) -> tuple[Array, list[Array], Array]:
        """Of records as counted in this part: where in its granule each begins, where its ragged runs do, and its items."""
        first = records - records % self.per_granule
        last = np.minimum(first + self.per_granule, self.count)
        before, items = self.ends[first], self.ends[last] - self.ends[first]
        sizes = self.ends[records + 1] - self.ends[records]
        begin = (last - first) * self._record_bytes
        runs = []
        for width in self._widths:
            runs.append(begin + (self.ends[records] - before) * width)
            begin = begin + items * width
        return (records - first) * self._record_bytes, runs, sizes

    def begins(self, records: Array) -> Array:
        """Where in the file the granule of each record begins."""
        found: Array = self._offsets[records // self.per_granule]
        return found

    def span(self, granule: int) -> tuple[int, int]:
        """[begin, end) in the file."""
        return int(self._offsets[granule]), int(self._offsets[granule + 1])

    def members(self, granule: int) -> tuple[int, int]:
        """[first, last) of its records, as counted in this part."""
        first = granule * self.per_granule
        return first, min(first + self.per_granule, self.count)

    def check(self, granule: int) -> bool:
        begin, end = self.span(granule)
        return checksum(self.bytes[begin:end]) == int(self._checksums[granule])

    def will_need(self, granule: int) -> None:
        """Ask the kernel to read it ahead, beside all others asked for: page faults would come one after the other."""
        begin, end = self.span(granule)
        begin -= begin % mmap.PAGESIZE
        _libc().madvise(ctypes.c_void_p(self._content.data_ptr() + begin), ctypes.c_size_t(end - begin), mmap.MADV_WILLNEED)

    def content(self, granule: int) -> Array:
        begin, end = self.span(granule)
        stored = self.bytes[begin:end]
        if self.compression == "none":
            return stored
        first, last = self.members(granule)
        items = int(self.ends[last] - self.ends[first])
        return decompress(stored, self.compression, (last - first) * self._record_bytes + items * self._item_bytes)


@lru_cache(maxsize=1)
def _libc() -> Any:
    return ctypes.CDLL(None)
