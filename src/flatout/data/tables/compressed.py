"""Bytes of a file as they were before it was compressed by gz, bz2, xz, zst, lz4 or zip. The content tells which."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from typing import Any, BinaryIO

from flatout.base.errors import DataError
from flatout.data.places import Place

SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lz4", ".zip")
_DAMAGED = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)  # Arrow's errors are among them


def open_plain(place: Place) -> io.BufferedReader:
    """The decompressed bytes, from the start. Closing it closes the file."""
    file = place.open()
    try:
        return io.BufferedReader(_Plain(_decompressed(file, place), file, place.name), 1 << 20)
    except BaseException:
        file.close()
        raise


def _decompressed(file: BinaryIO, place: Place) -> Any:
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if magic.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(file)
    if magic.startswith(b"PK\x03\x04"):
        return _only_member(file, place)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _by_arrow(file, "zstd")
    if magic.startswith(b"\x04\x22\x4d\x18"):
        return _by_arrow(file, "lz4")
    return file


def _only_member(file: BinaryIO, place: Place) -> Any:
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        raise DataError(f"{place.name} is a damaged zip file: {error}") from error
    members = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    if len(members) != 1:
        raise DataError(f"{place.name} holds {len(members)} files: unpack it, or leave one file in it")
    return archive.open(members[0])


def _by_arrow(file: BinaryIO, codec: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)


class _Plain(io.RawIOBase):
    """What a decompressor reads, together with the file beneath it, which decompressors leave open."""

    def __init__(self, content: Any, file: BinaryIO, name: str) -> None:
        self._content = content
        self._file = file
        self._name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._content.read(len(buffer))
        except _DAMAGED as error:
            raise DataError(f"{self._name} can't be read to its end, it is cut off or damaged: {error}") from error
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._content.close()
            self._file.close()
        super().close()
