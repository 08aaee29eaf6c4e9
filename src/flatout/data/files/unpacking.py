"""Bytes of a file as they were before it was compressed by gz, bz2, xz, zst, lz4 or zip. The content tells which.

A small file may unpack to any size. All that is unpacked comes through here, a piece at a time: nobody gets more than was asked
for, no line may be longer than a line can be, and whoever wants the whole says how much memory there is for it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

from flatout.base.errors import DataError
from flatout.base.units import show_bytes
from flatout.data.files.allowance import allowed_bytes, too_large
from flatout.data.files.damage import reading
from flatout.data.files.places import FilePlace

SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lz4", ".zip")
LONGEST_LINE_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
_PACKED_BYTES = 64 << 10


def open_plain(place: FilePlace, packed: bool = False) -> io.BufferedReader:
    """The decompressed bytes, from the start. Closing it closes the file. With `packed`, one that is not is an error."""
    file = place.open()
    try:
        content = _decompressed(file, place)
        if packed and content is file:
            raise DataError(f"{place.name} can't be read: its name says that it is compressed, and its content does not")
        return io.BufferedReader(_Plain(content, file, place.name), _PIECE_BYTES)
    except BaseException:
        file.close()
        raise


def read_line(stream: io.BufferedReader, name: str) -> bytes:
    """The next line with its end, or what is left of one; empty at the end of the file."""
    line = stream.readline(LONGEST_LINE_BYTES + 1)
    if len(line) > LONGEST_LINE_BYTES:
        raise line_too_long(name)
    return line


def line_too_long(name: str, number: int | None = None) -> DataError:
    where = "a line" if number is None else f"line {number}"
    most = show_bytes(LONGEST_LINE_BYTES)
    return DataError(f"{name}: {where} is longer than {most}, the most that a line may have: is it a file of lines?")


class LineGuard(io.RawIOBase):
    """A stream of lines for readers that take a line whole, however long it is: this one ends such a line with an error."""

    def __init__(self, stream: io.BufferedReader, name: str) -> None:
        self._stream, self._name = stream, name
        self._since_line_end = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._stream.read(min(len(buffer), _PIECE_BYTES))
        end = max(content.rfind(b"\n"), content.rfind(b"\r"))
        self._since_line_end = len(content) - 1 - end + (self._since_line_end if end < 0 else 0)
        if self._since_line_end > LONGEST_LINE_BYTES:
            raise line_too_long(self._name)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def check_unpacked_fits(place: FilePlace, times: int) -> None:
    """DataError unless `times` the unpacked content has room in memory. It is read to be counted: no header can be trusted."""
    most, unpacked = allowed_bytes() // times, 0
    with open_plain(place) as stream:
        while piece := stream.read(_PIECE_BYTES):
            unpacked += len(piece)
            if unpacked > most:
                what = f"its {show_bytes(place.size)} unpack to more than {show_bytes(most)}, which take {times} times that"
                raise too_large(place.name, what, most * times)


def _decompressed(file: BinaryIO, place: FilePlace) -> Any:
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if magic.startswith(b"BZh"):
        return _Stepwise(file, bz2.BZ2Decompressor)
    if magic.startswith(b"\xfd7zXZ\x00"):
        return _Stepwise(file, lambda: lzma.LZMADecompressor(memlimit=max(1, allowed_bytes())))
    if magic.startswith(b"PK\x03\x04"):
        return _only_member(file, place)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _by_arrow(file, "zstd")
    if magic.startswith(b"\x04\x22\x4d\x18"):
        return _by_arrow(file, "lz4")
    return file


def _only_member(file: BinaryIO, place: FilePlace) -> Any:
    with reading(place.name, "as a zip file"):
        archive = zipfile.ZipFile(file)
        members = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
        if len(members) != 1:
            raise DataError(f"{place.name} holds {len(members)} files: unpack it, or leave one file in it")
        if archive.getinfo(members[0]).flag_bits & 1:
            raise DataError(f"{place.name} is encrypted: unpack it with its password first")
        return archive.open(members[0])


def _by_arrow(file: BinaryIO, codec: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)


class _Decompressor(Protocol):
    def decompress(self, data: bytes, max_length: int) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


class _Stepwise:
    """What a decompressor of the standard library makes of a file, stream after stream.

    `bz2` and `lzma` have such a thing, but theirs takes whatever memory the header of an xz file asks for.
    """

    def __init__(self, file: BinaryIO, make: Callable[[], _Decompressor]) -> None:
        self._file, self._make = file, make
        self._decompressor = make()
        self._left = b""

    def read(self, size: int) -> bytes:
        while True:
            if self._decompressor.eof:
                self._left = (self._decompressor.unused_data or self._file.read(_PACKED_BYTES)).lstrip(b"\0")
                if not self._left:
                    return b""
                self._decompressor = self._make()
            packed = b""
            if self._decompressor.needs_input:
                packed, self._left = self._left or self._file.read(_PACKED_BYTES), b""
                if not packed:
                    raise EOFError("it ends before its end-of-stream marker")
            try:
                content = self._decompressor.decompress(packed, size)
            except lzma.LZMAError as error:
                if "memory usage limit" in str(error).lower():
                    raise MemoryError from error
                raise
            if content:
                return content

    def close(self) -> None:
        """The file is closed by whoever opened it."""


class _Plain(io.RawIOBase):
    """What a decompressor reads, together with the file beneath it, which decompressors leave open."""

    def __init__(self, content: Any, file: BinaryIO, name: str) -> None:
        self._content = content
        self._file = file
        self._name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with reading(self._name, "to its end"):
            content = self._content.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._content.close()
            self._file.close()
        super().close()
