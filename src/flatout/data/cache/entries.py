"""The entries of a cache folder: their size, which are in use, and deleting the others.

    <folder>/alone                  locked while entries are created, opened or deleted
    <folder>/<kind>/<name>/         an entry
    <folder>/<kind>/<name>/in-use   locked (shared) by every process that has it open; its time is the last use

The kernel releases a lock when its process ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KINDS = ("rows", "tokens", "tables")
_NAME = re.compile(r"[0-9a-f]{32}(\..*)?")  # a key, or a temporary name while it is made
_GONE = ".gone-"


class Entries:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[Path]:
        found: list[Path] = []
        for kind in KINDS:
            with suppress(OSError):  # not a folder, or not there yet
                found += [path for path in (self.folder / kind).iterdir() if _NAME.fullmatch(path.name)]
        return found

    def used_bytes(self) -> int:
        return sum(map(_size, self.all()))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Locks out other processes and threads that open, make or remove entries."""
        path = self.folder / "alone"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a read-only cache can still be read
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def evict(self, allowed_bytes: int | None) -> int:
        """Call it while `alone`. Deletes least recently used entries until `allowed_bytes` are left; returns the bytes left."""
        for kind in KINDS:
            for leftover in (self.folder / kind).glob(f"{_GONE}*"):
                shutil.rmtree(leftover, ignore_errors=True)
        sizes = {entry: _size(entry) for entry in self.all()}
        used = sum(sizes.values())
        for entry in sorted(sizes, key=_last_used):
            if allowed_bytes is None or used <= allowed_bytes:
                break
            if self.remove(entry):
                used -= sizes[entry]
        return used

    def remove(self, entry: Path) -> bool:
        """Call it while `alone`. False if a process has it open."""
        gone = entry.with_name(f"{_GONE}{entry.name}")
        try:
            lock = os.open(entry / "in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(entry, gone)  # so that no process sees half an entry
        except OSError:
            return False
        finally:
            os.close(lock)
        shutil.rmtree(gone, ignore_errors=True)
        return True


class EntryInUse:
    """Protects an entry from eviction until it is closed or garbage collected."""

    def __init__(self, lock: int) -> None:
        self.close = weakref.finalize(self, _let_go, lock)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a pickled copy holds no lock


def hold(entry: Path, make: bool = False) -> EntryInUse | None:
    """`entry` is <cache>/<kind>/<name>. None: it does not exist, or it is not in a cache, so nothing evicts it."""
    if entry.parent.name not in KINDS or not _NAME.fullmatch(entry.name):
        if make:
            entry.mkdir(parents=True, exist_ok=True)
        return None
    if make:
        entry.parent.mkdir(parents=True, exist_ok=True)
    try:
        with Entries(entry.parent.parent).alone():
            if make:
                entry.mkdir(exist_ok=True)
            return EntryInUse(lock_shared(entry, make=True))
    except OSError:
        if make:
            raise
        return None  # it does not exist or is read-only


def lock_shared(entry: Path, make: bool = False) -> int:
    """Call it while `alone`. FileNotFoundError if there is no entry."""
    flags = os.O_RDWR | os.O_CREAT if make else os.O_RDONLY
    lock = os.open(entry / "in-use", flags | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    mark_used(lock)
    return lock


def mark_used(lock: int) -> None:
    """In nanoseconds: the kernel's file times have steps of milliseconds, too coarse to order two uses."""
    now_ns = time.time_ns()
    with suppress(OSError):  # belongs to another user
        os.utime(lock, ns=(now_ns, now_ns))


def _let_go(lock: int) -> None:
    mark_used(lock)
    os.close(lock)


def _size(folder: Path) -> int:
    """Size of a folder that other processes may be changing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _last_used(entry: Path) -> int:
    for path in (entry / "in-use", entry):
        with suppress(OSError):
            return path.stat().st_mtime_ns
    return 0
