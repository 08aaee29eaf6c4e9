"""The content of a stage's inputs: files and folders of any size, which are read again only if they changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flatout.base.errors import DataError
from flatout.base.trust import private_cache
from flatout.pipelines.identity.hashing import digest_of, digest_of_bytes, moment
from flatout.pipelines.identity.remembered import FileContent, Moment, RememberedDigests

_NO_CONTENT = ("__pycache__", ".DS_Store", "Thumbs.db")


@dataclass(frozen=True)
class InputContent:
    """`digest` is that of the file, or of a folder's names and files; `bytes` and `files` say how much that is."""

    digest: str
    bytes: int
    files: int


class InputHashes:
    """`notes` says what could not be remembered, and why."""

    def __init__(self, cache: Path) -> None:
        self.notes: list[str] = []
        self.folder = private_cache(cache)
        self._cache = self.folder / "inputs"
        self._open: dict[str, RememberedDigests] = {}

    def of(self, path: Path) -> InputContent:
        """A file, or a folder with all files below it. DataError if it is missing or can't be read."""
        path = path.absolute()
        try:
            about = path.stat()
        except OSError as error:
            raise DataError(f"the input {path} can't be read: {error.strerror}") from error
        if stat.S_ISDIR(about.st_mode):
            return self._of_folder(path)
        if not stat.S_ISREG(about.st_mode):
            raise DataError(f"the input {path} is neither a file nor a folder")
        found = self.of_files(path, {"": (str(path), moment(about))})[""]
        return InputContent(found.digest, found.bytes, 1)

    def of_files(self, group: Path, files: Mapping[str, tuple[str, Moment]]) -> dict[str, FileContent]:
        """Of files that are always asked for together; what is remembered of them has the name of `group`."""
        name = digest_of_bytes(os.fsencode(group))[:32]
        if name not in self._open:
            self._open[name] = RememberedDigests(self._cache / f"{name}.json", self.notes)
        return self._open[name].of(files)

    def _of_folder(self, folder: Path) -> InputContent:
        files: dict[str, tuple[str, Moment]] = {}
        folders: list[str] = []
        for name, path, about in files_below(str(folder)):
            if about is None:
                folders.append(name)
            else:
                files[name] = path, moment(about)
        found = self.of_files(folder, files)
        content = [sorted(folders), sorted((name, one.digest) for name, one in found.items())]
        return InputContent(digest_of(content), sum(one.bytes for one in found.values()), len(found))


def files_below(
    folder: str, prefix: str = "", above: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[str, str, os.stat_result | None]]:
    """Every file by its name and path, with its status, and every folder without one."""
    try:
        own = os.stat(folder)
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.path, _status(entry)) for entry in entries if entry.name not in _NO_CONTENT]
    except OSError as error:
        raise DataError(f"the input {folder} can't be read: {error.strerror}") from error
    if (own.st_dev, own.st_ino) in above:
        raise DataError(f"the input {folder} is a link to a folder that it is in: remove the link")
    for entry_name, path, about in found:
        name = _printable(f"{prefix}{entry_name}")
        if stat.S_ISDIR(about.st_mode):
            yield name, path, None
            yield from files_below(path, f"{prefix}{entry_name}/", (*above, (own.st_dev, own.st_ino)))
        elif stat.S_ISREG(about.st_mode):
            yield name, path, about
        else:
            raise DataError(f"the input {path} is neither a file nor a folder")


def _printable(name: str) -> str:
    """A name that is no text is written down by its bytes."""
    return name if name.isascii() else os.fsencode(name).decode(errors="backslashreplace")


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError as error:
        what = "is a link to nothing" if entry.is_symlink() else f"can't be read: {error.strerror}"
        raise DataError(f"the input {entry.path} {what}") from error
