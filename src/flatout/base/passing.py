"""Temporary folders that are removed after use. The next process removes those of killed processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = "in-use"
_YOUNG_S = 60.0  # a folder that is just being created has no lock yet


@contextmanager
def passing_folder(prefix: str) -> Iterator[Path]:
    """A new temporary folder, private to this user (mode 700) and this use."""
    _sweep(prefix)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-"))
    lock = None
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _sweep(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}-*"):
        with suppress(OSError):
            about = folder.lstat()
            if about.st_uid == os.geteuid() and time.time() - about.st_mtime > _YOUNG_S and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Whether its process is gone, and the lock with it."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
