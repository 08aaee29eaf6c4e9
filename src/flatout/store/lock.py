"""One process at a time trains in a run folder. The lock goes with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from flatout.base.errors import RunBusy


class RunLock:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file: int | None = None

    def take(self) -> None:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise RunBusy(
                f"{self._path.parent} is being trained by process {owner}: wait, stop it, or start another run with --fresh"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._file = handle

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @staticmethod
    def is_held(folder: Path) -> bool:
        try:
            handle = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except OSError:
            return True
        finally:
            os.close(handle)
