"""Decompresses gz, bz2, xz, zst, lz4 and zip; the content shows which.

A small file may unpack to any size, so bytes are decompressed piece by piece: a reader never gets more than it asks for.
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
from flatout.data.files.allowance import allowed_bytes
from flatout.data.files.damage import reading

_PIECE_BYTES = 1 << 20
_PACKED_BYTES = 64 << 10


def unpacked(file: BinaryIO, start: bytes, name: str) -> io.BufferedReader:
    """The decompressed bytes of a file that begins with `start`; its own bytes if it is not compressed.

    Errors of the decompressor and of a remote store become a DataError that names the file. Closing it closes the file.
    """
    return io.BufferedReader(_Guarded(_decompressed(file, start, name), file, name), _PIECE_BYTES)


def _decompressed(file: BinaryIO, magic: bytes, name: str) -> Any:
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if magic.startswith(b"BZh"):
        return _Stepwise(file, bz2.BZ2Decompressor)
    if magic.startswith(b"\xfd7zXZ\x00"):
        return _Stepwise(file, lambda: lzma.LZMADecompressor(memlimit=max(1, allowed_bytes())))
    if magic.startswith(b"PK\x03\x04"):
        return _only_member(file, name)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _by_arrow(file, "zstd")
    if magic.startswith(b"\x04\x22\x4d\x18"):
        return _by_arrow(file, "lz4")
    return file


def _only_member(file: BinaryIO, name: str) -> Any:
    with reading(name, "as a zip file"):
        archive = zipfile.ZipFile(file)
        members = [member for member in archive.namelist() if not member.endswith("/") and not member.startswith("__MACOSX/")]
        if len(members) != 1:
            raise DataError(f"{name} holds {len(members)} files: unpack it, or leave one file in it")
        if archive.getinfo(members[0]).flag_bits & 1:
            raise DataError(f"{name} is encrypted: unpack it with its password first")
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
    """Decompresses a file of one or more streams.

    Unlike `bz2.open` and `lzma.open`, it can limit the memory that the header of an xz file asks for.
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
        """The caller closes the file."""


class _Guarded(io.RawIOBase):
    """Reads from a decompressor, and closes its file too, which decompressors leave open."""

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
