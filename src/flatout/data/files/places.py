"""Finds the files that paths, globs, folders and URLs name, and opens them."""

from __future__ import annotations

import errno
import glob
import hashlib
import io
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from flatout.base.errors import DataError

Written = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_PIECES, _PIECE_BYTES = 16, 64 << 10
TO_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Non-blocking: opening a named pipe must not wait for a writer."""
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lz4", ".zip")
_PACKED_MARKS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
_BUFFER_BYTES = 1 << 20
_SPECIAL = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class FilePlace(Protocol):
    """One file. `name` is the path as the user wrote it, for messages."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def open(self) -> BinaryIO:
        """Its bytes, from the start."""

    def fingerprint(self) -> str:
        """A hash in hex that changes when the content changes. The folder of the file does not matter."""

    def local(self) -> Path | None:
        """The path on this machine; None for a remote file."""


def located(written: Any, base_folder: Path) -> Any:
    """All relative paths in `written`, joined to the folder of the recipe. Absolute paths and URLs stay."""
    if isinstance(written, Mapping):
        return {name: located(path, base_folder) for name, path in written.items()}
    if isinstance(written, list):
        return [located(path, base_folder) for path in written]
    if not isinstance(written, str) or written.startswith("module:") or is_remote(written):
        return written
    written = written.removeprefix("file://")
    return str(base_folder / Path(written).expanduser())


def is_remote(path: str) -> bool:
    return "://" in path and not path.startswith("file://")


def open_regular(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Opens a regular file to read. OSError for a pipe, a socket or a device: reading them may never end."""
    _check_regular(os.stat(path).st_mode, path)  # before opening: opening a device can have effects
    handle = os.open(path, TO_READ)
    try:
        _check_regular(os.fstat(handle).st_mode, path)
        return os.fdopen(handle, "rb", buffering)
    except BaseException:
        os.close(handle)
        raise


def special_kind(path: str | os.PathLike[str]) -> str | None:
    """ "a named pipe", "a socket" or "a device"; None for files, folders and missing paths."""
    try:
        return _SPECIAL.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):
        return None


def _check_regular(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        what = _SPECIAL.get(stat.S_IFMT(mode), "no file")
        raise OSError(errno.EINVAL, f"it is {what}, which may never end: copy it to a file", os.fspath(path))


class LocalFile:
    def __init__(self, path: Path, name: str | None = None) -> None:
        self.name = str(path) if name is None else name
        self._path = path

    @property
    def size(self) -> int:
        return self._path.stat().st_size

    def open(self) -> BinaryIO:
        try:
            return open_regular(self._path, _BUFFER_BYTES)
        except OSError as error:
            raise DataError(f"{self.name} can't be opened: {error.strerror}") from error

    def fingerprint(self) -> str:
        """A hash of the size, the time of the last change and the content: of a large file, of pieces spread evenly over it."""
        with self.open() as file:
            status = os.fstat(file.fileno())
            digest = hashlib.blake2b(f"{status.st_size} {status.st_mtime_ns}".encode(), digest_size=16)
            if status.st_size <= _PIECES * _PIECE_BYTES:
                digest.update(file.read())
            else:
                for piece in range(_PIECES):
                    file.seek((status.st_size - _PIECE_BYTES) * piece // (_PIECES - 1))
                    digest.update(file.read(_PIECE_BYTES))
        return digest.hexdigest()

    def local(self) -> Path:
        return self._path


def open_plain(place: FilePlace, packed: bool = False) -> io.BufferedReader:
    """The bytes of a file, decompressed if its content is compressed. Closing the stream closes the file.

    With `packed`, a file that is not compressed is an error.
    """
    file = place.open()
    try:
        start = file.read(6)
        file.seek(0)
        is_packed = start.startswith(_PACKED_MARKS)
        if packed and not is_packed:
            raise DataError(f"{place.name} can't be read: its name says that it is compressed, its content is not")
        if is_packed or place.local() is None:
            from flatout.data.files.unpacking import unpacked

            return unpacked(file, start, place.name)
        return cast(io.BufferedReader, file)
    except OSError as error:
        file.close()
        raise DataError(f"{place.name} can't be read: {error}") from error
    except BaseException:
        file.close()
        raise


def find(
    paths: Written,
    base_folder: str | os.PathLike[str] | None = None,
    what: str = "table",
    suffixes: Sequence[str] = (),
) -> list[FilePlace]:
    """All files that `paths` name, in order; the files of a glob or a folder are sorted by name.

    Relative paths start at `base_folder`. A folder stands for all files below it that end in one of `suffixes`.
    DataError names the path that matches no file.
    """
    written = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not written:
        raise DataError(f"{what}: no files were given")
    places: list[FilePlace] = []
    for one in written:
        if not isinstance(one, str | os.PathLike):
            raise DataError(f"{what}: expected a path, a glob, a folder or a URL, got {one!r}")
        places += _at(os.fspath(one), Path(base_folder or "."), what, tuple(suffix.lower() for suffix in suffixes))
    seen: set[str] = set()
    for place in places:
        path = place.local()
        identity = place.name if path is None else str(path.resolve())
        if identity in seen:
            raise DataError(f"{what}: {place.name} is given twice: its rows would count double")
        seen.add(identity)
    return places


def _at(name: str, base: Path, what: str, suffixes: tuple[str, ...]) -> list[FilePlace]:
    if name.startswith("file://"):
        name = name.removeprefix("file://")
    if "://" in name:
        from flatout.data.files.remote import remote_files

        return [*remote_files(name, what, lambda parts: is_data_file(parts, suffixes), _listed(suffixes))]
    path = base / Path(name).expanduser()
    if os.path.isfile(path):
        return [LocalFile(path, name)]
    if os.path.isdir(path):
        inside = [Path(folder) / file for folder, _, files in os.walk(path) for file in files]
        inside = [file for file in inside if os.path.isfile(file)]
        found = [
            (file, file.relative_to(path)) for file in sorted(inside) if is_data_file(file.relative_to(path).parts, suffixes)
        ]
        if not found:
            raise DataError(f"{what}: the folder {name} has no file that ends in {_listed(suffixes)}")
        return [LocalFile(file, str(Path(name) / below)) for file, below in found]
    # The base folder is no pattern: its name may have brackets.
    matches = sorted(glob.glob(name if path == Path(name) else str(Path(name).expanduser()), root_dir=base, recursive=True))
    files = [match for match in matches if os.path.isfile(base / match)]
    if not files:
        special = special_kind(path)
        if special is not None:
            raise DataError(f"{what}: {name} is {special}, which may never end: copy it to a file")
        kind = "matches no file" if glob.has_magic(name) else "does not exist"
        place = "" if path.is_absolute() and Path(name).is_absolute() else f" (looked for in {base.resolve()})"
        raise DataError(f"{what}: {name} {kind}{place}")
    return [LocalFile(base / match, match) for match in files]


def is_data_file(parts: tuple[str, ...], suffixes: tuple[str, ...]) -> bool:
    """Whether a file below a folder is data: hidden files and marks of tools (.DS_Store, _SUCCESS) are not."""
    hidden = any(part.startswith((".", "_")) for part in parts)
    return not hidden and (not suffixes or parts[-1].lower().endswith(suffixes))


def _listed(suffixes: tuple[str, ...]) -> str:
    return ", ".join(suffixes) or "anything"
