"""Where files are: paths, globs and folders of this machine, and whatever fsspec reaches by a URL (s3://, https://, memory://)."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from flatout.base.errors import DataError

Written = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_PIECES, _PIECE_BYTES = 16, 64 << 10
TO_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""To open what may turn out to be a pipe: without waiting for someone to write into it."""
_SPECIAL = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class FilePlace(Protocol):
    """One file. `name` is how it was written, for messages."""

    name: str

    @property
    def size(self) -> int: ...

    def open(self) -> BinaryIO:
        """Its bytes, from the start."""

    def fingerprint(self) -> str:
        """Another one whenever the content is another one, in hex; the folder it lies in does not matter."""

    def local(self) -> Path | None:
        """Where it is on this machine; None for a remote file."""


def located(written: Any, base_folder: Path) -> Any:
    """Every path in it, from the folder of the recipe; an absolute one and a URL stay."""
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
    """A file to read from. OSError for a pipe, a socket or a device, to read from which may take forever."""
    _check_regular(os.stat(path).st_mode, path)  # some devices act on being opened
    handle = os.open(path, TO_READ)
    try:
        _check_regular(os.fstat(handle).st_mode, path)
        return os.fdopen(handle, "rb", buffering)
    except BaseException:
        os.close(handle)
        raise


def special_kind(path: str | os.PathLike[str]) -> str | None:
    """ "a named pipe", "a socket", "a device"; None for a file, a folder, and where nothing is."""
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
            return open_regular(self._path)
        except OSError as error:
            raise DataError(f"{self.name} can't be opened: {error.strerror}") from error

    def fingerprint(self) -> str:
        """Size, time of the last change, and pieces spread evenly over the content: a small file whole."""
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


class RemoteFile:
    """A file of an fsspec filesystem."""

    def __init__(self, filesystem: Any, path: str, name: str) -> None:
        self.name = name
        self._filesystem = filesystem
        self._path = path

    @property
    def size(self) -> int:
        return int(self._asked(self._filesystem.info)["size"] or 0)

    def open(self) -> BinaryIO:
        return cast(BinaryIO, self._asked(self._filesystem.open, "rb"))

    def fingerprint(self) -> str:
        """What the store says of the content without sending it (its tag, its size, its time), and how it starts."""
        info = self._asked(self._filesystem.info)
        told = [
            (key, str(info[key]))
            for key in ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created", "size")
            if key in info
        ]
        with self.open() as file:
            start = file.read(_PIECE_BYTES)
        return hashlib.blake2b(repr(told).encode() + start, digest_size=16).hexdigest()

    def local(self) -> None:
        return None

    def _asked(self, question: Any, *more: Any) -> Any:
        try:
            return question(self._path, *more)
        except Exception as error:  # each store has errors of its own
            raise DataError(f"{self.name} can't be read: {type(error).__name__}: {error}") from error


def find(
    paths: Written,
    base_folder: str | os.PathLike[str] | None = None,
    what: str = "table",
    suffixes: Sequence[str] = (),
) -> list[FilePlace]:
    """Every file meant, in order: those of one glob or folder sorted by name. DataError names what matches nothing.

    Relative paths start at `base_folder`. Of a folder, all files below it that end in one of `suffixes` are meant.
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
            raise DataError(f"{what}: {place.name} is named twice; its rows would count double")
        seen.add(identity)
    return places


def _at(name: str, base: Path, what: str, suffixes: tuple[str, ...]) -> list[FilePlace]:
    if name.startswith("file://"):
        name = name.removeprefix("file://")
    if "://" in name:
        return _remote(name, what, suffixes)
    path = base / Path(name).expanduser()
    if os.path.isfile(path):
        return [LocalFile(path, name)]
    if os.path.isdir(path):
        inside = [Path(folder) / file for folder, _, files in os.walk(path) for file in files]
        inside = [file for file in inside if os.path.isfile(file)]
        found = [(file, file.relative_to(path)) for file in sorted(inside) if _meant(file.relative_to(path).parts, suffixes)]
        if not found:
            raise DataError(f"{what}: the folder {name} has no file that ends in {_listed(suffixes)}")
        return [LocalFile(file, str(Path(name) / below)) for file, below in found]
    # Only what was written is a pattern: the base folder may have brackets in its name.
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


def _remote(url: str, what: str, suffixes: tuple[str, ...]) -> list[FilePlace]:
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(url)
        if glob.has_magic(path) and "http" not in url.split("://")[0]:
            found = [str(match) for match in sorted(filesystem.glob(path)) if not filesystem.isdir(match)]
            complaint = "matches no file"
        elif filesystem.isfile(path):
            found, complaint = [path], ""
        else:
            below = [str(file) for file in sorted(filesystem.find(path))] if filesystem.isdir(path) else []
            found = [file for file in below if _meant(Path(file[len(path) :].lstrip("/")).parts, suffixes)]
            complaint = f"has no file that ends in {_listed(suffixes)}" if below else "does not exist"
    except ImportError as error:
        raise DataError(f"{what}: {url} needs a library that is not installed: {error}") from error
    except ValueError as error:
        raise DataError(f"{what}: {url} can't be reached: {error}") from error
    except Exception as error:  # each store has errors of its own: no credentials, no network, no such bucket
        raise DataError(f"{what}: {url} can't be reached: {type(error).__name__}: {error}") from error
    if not found:
        raise DataError(f"{what}: {url} {complaint}")
    return [RemoteFile(filesystem, file, str(filesystem.unstrip_protocol(file))) for file in found]


def _meant(parts: tuple[str, ...], suffixes: tuple[str, ...]) -> bool:
    """Not what tools leave beside data: .DS_Store, _SUCCESS."""
    hidden = any(part.startswith((".", "_")) for part in parts)
    return not hidden and (not suffixes or parts[-1].lower().endswith(suffixes))


def _listed(suffixes: tuple[str, ...]) -> str:
    return ", ".join(suffixes) or "anything"
