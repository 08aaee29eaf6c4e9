"""Only one process at a time trains in a run folder, and only one at a time starts a run of the same identity. A lock is
released when its process ends, however it ends.

The locks are fcntl locks on an open file (OFD): whether one is held can be tested without taking it, so a reader never disturbs
a start. They also work on NFS, across machines. The file is also locked with flock, the only lock older versions know. On a
system without OFD locks, flock is the only one, and a test by another process may look like a training process for a moment.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.base.errors import RunBusy, StoreError

_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, length, pid
_HAS_OFD = hasattr(fcntl, "F_OFD_SETLK") and os.uname().sysname == "Linux"
_TAKEN = (errno.EAGAIN, errno.EACCES)
_PATIENCE = 10


class FileLock:
    """A lock on a dedicated file. `owner()` is the process that last wrote its name into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def take(self) -> bool:
        """False if another process holds it."""
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if not _lock(handle):
                    os.close(handle)
                    return False
                if not _is_still(handle, self.path):  # its last holder has removed the file meanwhile
                    os.close(handle)
                    continue
                with suppress(OSError):  # disk full: the lock works, only its owner is not recorded
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            except OSError as error:
                os.close(handle)
                raise StoreError(f"{self.path} can't be locked: {error.strerror}; {_NO_LOCKS}") from error
            self._file = handle
            return True

    def owner(self) -> str:
        try:
            return self.path.read_bytes()[:300].decode(errors="replace").strip() or "unknown"
        except OSError:
            return "unknown"

    def release(self, *, remove: bool = False) -> None:
        if self._file is not None:
            if remove:
                self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None

    @property
    def is_held(self) -> bool:
        """By any process. Asking changes nothing."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return _is_locked(handle)
        except OSError:
            return False
        finally:
            os.close(handle)


_NO_LOCKS = "runs need a file system with file locks (on NFS and Lustre a mount option): choose another folder with --runs"


def _is_still(handle: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _request(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def _lock(handle: int) -> bool:
    try:
        if _HAS_OFD:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK))
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return _flock(handle)


def _flock(handle: int) -> bool:
    for _ in range(_PATIENCE):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                if _HAS_OFD:
                    return True  # not every file system has flock, and the OFD lock is taken
                raise
        time.sleep(0.01)  # an older version may only be testing the lock, which takes it for a moment
    return False


def _is_locked(handle: int) -> bool:
    if _HAS_OFD:
        found = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK))
        return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK) or _is_flocked(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _is_flocked(handle: int) -> bool:
    """Held by an older version on this machine, according to /proc/locks."""
    about = os.fstat(handle)
    device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    return any("FLOCK" in line and "WRITE" in line and "->" not in line and device in line.split() for line in lines)


class RunLock:
    def __init__(self, folder: Path) -> None:
        self._lock = FileLock(folder / "lock")

    def take(self) -> None:
        if not self._lock.take():
            raise RunBusy(
                f"{self._lock.path.parent} is being trained by process {self._lock.owner()}: wait, stop it, or start a new "
                "run with --fresh"
            )

    def release(self) -> None:
        self._lock.release()

    @staticmethod
    def is_held(folder: Path) -> bool:
        return FileLock(folder / "lock").is_held


class StartLock:
    """Held from the search for an unfinished run until that run or a new one is locked, so two starts give one run."""

    def __init__(self, runs: Path, identity: str) -> None:
        self._runs = runs
        self._lock = FileLock(runs / f".starting-{identity[:16]}")
        self._made_folder = False

    def __enter__(self) -> StartLock:
        try:
            self._made_folder = not self._runs.exists()
            self._runs.mkdir(parents=True, exist_ok=True)
            taken = self._lock.take()
        except OSError as error:
            raise StoreError(
                f"can't create a run in {self._runs}: {error.strerror}; choose another folder with --runs"
            ) from error
        if not taken:
            raise RunBusy(
                f"process {self._lock.owner()} is starting a run of the same recipe in {self._runs}: wait, stop it, or start "
                "another run with --fresh"
            )
        return self

    def __exit__(self, *error: Any) -> None:
        self._lock.release(remove=True)
        if self._made_folder:
            with suppress(OSError):
                self._runs.rmdir()  # remove the folder if no run was created
