"""Image files by path: of this machine, or by a URL that fsspec reaches (s3://, https://, memory://)."""

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
    """OSError where it can't be opened, whatever the store says of it."""
    if not is_remote(path):
        return open_regular(path, buffering=0)  # few and large reads
    import fsspec

    try:
        return cast(BinaryIO, fsspec.open(path, "rb").open())
    except OSError:
        raise
    except Exception as error:  # each store has errors of its own
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
    """With few calls of the system, each a turn at the interpreter, and no more memory than it takes: what is too much has to
    be given back page by page, and every core hears of that."""
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
        while more[-1]:  # it grows, or more than one read takes
            more.append(os.read(file, _AT_ONCE))
        return b"".join(more)
    finally:
        os.close(file)


def remote_names(url: str, suffixes: tuple[str, ...]) -> tuple[str, list[str]]:
    """A folder as its store calls it, and the files below that end so, relative to it, sorted."""
    from fsspec.core import url_to_fs

    names = [place.name for place in find(url, what="images", suffixes=suffixes)]
    filesystem, path = url_to_fs(url)
    folder = str(filesystem.unstrip_protocol(path)).rstrip("/") + "/"
    if any(not name.startswith(folder) for name in names):
        raise DataError(f"images: {url} is no folder; expected one with a folder for each class")
    return folder, sorted(name.removeprefix(folder) for name in names)
