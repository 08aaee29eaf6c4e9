"""Files that fsspec reaches by a URL: s3://, https://, memory://."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from flatout.base.errors import DataError

_PIECE_BYTES = 64 << 10


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
        """A hash of what the store reports (tag, size, time) and of the first bytes."""
        info = self._asked(self._filesystem.info)
        reported = [
            (key, str(info[key]))
            for key in ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created", "size")
            if key in info
        ]
        with self.open() as file:
            start = file.read(_PIECE_BYTES)
        return hashlib.blake2b(repr(reported).encode() + start, digest_size=16).hexdigest()

    def local(self) -> None:
        return None

    def _asked(self, question: Any, *more: Any) -> Any:
        try:
            return question(self._path, *more)
        except Exception as error:  # every store raises its own kinds
            raise DataError(f"{self.name} can't be read: {type(error).__name__}: {error}") from error


def remote_files(url: str, what: str, is_data: Callable[[tuple[str, ...]], bool], suffixes: str) -> list[RemoteFile]:
    """The files behind a URL: one file, a glob, or a folder. `is_data` and `suffixes` say which files of a folder count."""
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
            found = [file for file in below if is_data(Path(file[len(path) :].lstrip("/")).parts)]
            complaint = f"has no file that ends in {suffixes}" if below else "does not exist"
    except ImportError as error:
        raise DataError(f"{what}: {url} needs a library that is not installed: {error}") from error
    except ValueError as error:
        raise DataError(f"{what}: {url} can't be reached: {error}") from error
    except Exception as error:  # every store raises its own kinds: no credentials, no network, no such bucket
        raise DataError(f"{what}: {url} can't be reached: {type(error).__name__}: {error}") from error
    if not found:
        raise DataError(f"{what}: {url} {complaint}")
    return [RemoteFile(filesystem, file, str(filesystem.unstrip_protocol(file))) for file in found]
