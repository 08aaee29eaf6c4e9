"""The memory that the batches of an Arrow file need, from its metadata, before any batch is decompressed.

A compressed buffer starts with its decompressed size, and Arrow allocates that much. The metadata are flatbuffers (Message.fbs
and File.fbs of Arrow); the few fields needed are read here.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flatout.data.files.allowance import check_fits
from flatout.data.files.damage import reading
from flatout.data.files.places import open_regular

_MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3  # of the union in a message
_BLOCK_BYTES, _BUFFER_BYTES = 24, 16
_NOT_COMPRESSED = -1


class _Table(NamedTuple):
    """A table of a flatbuffer, at `place`."""

    content: mmap.mmap
    place: int

    def at(self, field: int) -> int | None:
        """The place of a field; None if it has its default."""
        back = self.place - _number(self.content, "<i", self.place)
        if 4 + 2 * field >= _number(self.content, "<H", back):
            return None
        offset = _number(self.content, "<H", back + 4 + 2 * field)
        return self.place + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self.at(field)
        return 0 if place is None else _number(self.content, form, place)

    def table(self, field: int) -> _Table | None:
        place = self.at(field)
        return None if place is None else _Table(self.content, place + _number(self.content, "<I", place))

    def entries(self, field: int, size: int) -> Iterator[int]:
        """The places of the entries of a vector of structs."""
        place = self.at(field)
        if place is not None:
            place += _number(self.content, "<I", place)
            count = _number(self.content, "<I", place)
            if place + 4 + count * size > len(self.content):
                raise ValueError("a list is longer than the file")
            yield from range(place + 4, place + 4 + count * size, size)


def check_batches_fit(path: Path, name: str) -> None:
    """DataError if one batch of the file at `path` needs more memory than is free."""
    with open_regular(path) as file, reading(name, "as Arrow"):
        if not file.read(1):
            return  # the reader reports an empty file
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            listed = content[:6] == _MAGIC and content[-6:] == _MAGIC
            for metadata, body in _listed(content) if listed else _streamed(content):
                check_fits(_unpacked_bytes(metadata, body), name, "a batch of it is, unpacked,")


def _unpacked_bytes(message: _Table, body: int) -> int:
    kind = message.number(1, "<B")
    batch = message.table(2) if kind in (_DICTIONARY, _BATCH) else None
    if batch is not None and kind == _DICTIONARY:
        batch = batch.table(1)
    if batch is None or batch.at(3) is None:  # no compression: buffers are used directly from the file
        return 0
    sizes = []
    for place in batch.entries(2, _BUFFER_BYTES):
        offset, length = _number(batch.content, "<q", place), _number(batch.content, "<q", place + 8)
        if length > 0:
            size = _number(batch.content, "<q", body + offset)
            sizes.append(length if size == _NOT_COMPRESSED else max(0, size))
    return sum(sizes)


def _listed(content: mmap.mmap) -> Iterator[tuple[_Table, int]]:
    """The messages in the footer, and where the body of each starts."""
    end = len(content) - len(_MAGIC) - 4
    footer = end - _number(content, "<i", end)
    root = _root(content, footer)
    for field in (2, 3):  # dictionaries, batches
        for block in root.entries(field, _BLOCK_BYTES):
            offset, length = _number(content, "<q", block), _number(content, "<i", block + 8)
            prefix = 8 if _number(content, "<I", offset) == _CONTINUES else 4
            yield _root(content, offset + prefix), offset + length


def _streamed(content: mmap.mmap) -> Iterator[tuple[_Table, int]]:
    place = 0
    while place + 8 <= len(content):
        continued = _number(content, "<I", place) == _CONTINUES
        place += 8 if continued else 4
        length = _number(content, "<i", place - 4)
        if length <= 0:
            return
        message = _root(content, place)
        yield message, place + length
        place += length + max(0, message.number(3, "<q"))


def _root(content: mmap.mmap, start: int) -> _Table:
    return _Table(content, start + _number(content, "<I", start))


def _number(content: mmap.mmap, form: str, place: int) -> int:
    if not 0 <= place <= len(content) - struct.calcsize(form):
        raise ValueError(f"it points to byte {place}, and has {len(content)}")
    (number,) = struct.unpack_from(form, content, place)
    return int(number)
