"""Opens image files: local ones, or by a URL that fsspec reaches (s3://, https://, memory://)."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO, cast

from flatout.base.errors import DataError
from flatout.data.files.places import TO_READ, find, open_regular

_AT_ONCE = 1 << 19


def is_remote(path: object) -> bool:
    return isinstance(path, str) and "://" in path


def open_photo(path: str) -> BinaryIO:
    """OSError if the file can't be opened, whatever error the store raises."""
    if not is_remote(path):
        return open_regular(path, buffering=0)  # few large reads
    import fsspec

    try:
        return cast(BinaryIO, fsspec.open(path, "rb").open())
    except OSError:
        raise
    except Exception as error:  # every store raises its own kinds
        raise OSError(f"{type(error).__name__}: {error}") from error


def read_photo(path: str) -> bytes:
    if not is_remote(path):
        return _read_here(path)
    with open_photo(path) as file:
        try:
            return file.read()
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


def _read_here(path: str) -> bytes:
    """Reads a file with few system calls, each of which takes the interpreter lock, and with no larger buffer than needed:
    returning memory page by page interrupts every core.
    """
    file = os.open(path, TO_READ)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no file any more")
        size = status.st_size
        content = os.read(file, size + 1)
        if len(content) == size:
            return content
        more = [content]
        while more[-1]:  # it grew, or one read was not enough
            more.append(os.read(file, _AT_ONCE))
        return b"".join(more)
    finally:
        os.close(file)


def remote_names(url: str, suffixes: tuple[str, ...]) -> tuple[str, list[str]]:
    """A remote folder, and the files below it with these suffixes, relative to it and sorted."""
    from fsspec.core import url_to_fs

    names = [place.name for place in find(url, what="images", suffixes=suffixes)]
    filesystem, path = url_to_fs(url)
    folder = str(filesystem.unstrip_protocol(path)).rstrip("/") + "/"
    if any(not name.startswith(folder) for name in names):
        raise DataError(f"images: {url} is not a folder; expected one with a folder for each class")
    return folder, sorted(name.removeprefix(folder) for name in names)
