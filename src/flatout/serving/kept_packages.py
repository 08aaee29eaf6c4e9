"""A server's own copies of the packages that it serves: those given may be replaced at any time."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from flatout.base.errors import FlatoutError, MachineError
from flatout.packaging.package import open_package

_CLONE = 0x40049409  # FICLONE: a copy that shares its blocks, where the disk can do that


def keep_package(package: Path, target: Path) -> None:
    """A copy, so that this version stays what it is while the package is replaced, or is overwritten in place."""
    target.mkdir()
    try:
        for file in package.iterdir():
            _copy_file(file, target / file.name)
    except OSError as error:
        raise MachineError(f"the package {package} can't be copied to {target.parent}: {error}") from error
    try:
        open_package(target)  # checks every file
    except FlatoutError:
        open_package(package)  # says it of the package itself
        raise MachineError(f"the package {package} was changed while it was read; load it again") from None


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        try:
            fcntl.ioctl(written.fileno(), _CLONE, read.fileno())
        except OSError:
            shutil.copyfileobj(read, written, 1 << 20)
