"""All that is kept in a cache folder, whoever made it: what it takes on disk, what is in use, what can go.

    <folder>/alone                  locked for the moments in which entries come and go
    <folder>/<kind>/<name>/         an entry
    <folder>/<kind>/<name>/in-use   locked (shared) by whoever has the entry open; its time is that of the last use

Locks go with their process, however that ends.
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
_NAME = re.compile(r"[0-9a-f]{32}(\..*)?")  # a key; and what stands beside it while it is made
_GONE = ".gone-"


class Entries:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[Path]:
        found: list[Path] = []
        for kind in KINDS:
            with suppress(OSError):  # not there yet, or no folder at all
                found += [path for path in (self.folder / kind).iterdir() if _NAME.fullmatch(path.name)]
        return found

    def used_bytes(self) -> int:
        return sum(map(_size, self.all()))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process or thread opens, makes or removes entries."""
        path = self.folder / "alone"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a cache that others keep can still be read
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def evict(self, allowed_bytes: int | None) -> int:
        """Call it while `alone`. What was not used for longest goes until no more is taken; the bytes that are left."""
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
        """Call it while `alone`. Not if somebody has it open."""
        gone = entry.with_name(f"{_GONE}{entry.name}")
        try:
            lock = os.open(entry / "in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(entry, gone)  # first out of sight: half an entry is never seen
        except OSError:
            return False
        finally:
            os.close(lock)
        shutil.rmtree(gone, ignore_errors=True)
        return True


class EntryInUse:
    """An entry that nobody evicts until this is closed or forgotten."""

    def __init__(self, lock: int) -> None:
        self.close = weakref.finalize(self, _let_go, lock)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a copy holds nothing: what it was made from does


def hold(entry: Path, make: bool = False) -> EntryInUse | None:
    """`entry` is <cache>/<kind>/<name>. None: it is not there, or it is a folder of other people, which nobody evicts."""
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
        return None  # not there; or it can't be written, and then whoever can must leave it alone


def lock_shared(entry: Path, make: bool = False) -> int:
    """Call it while `alone`. FileNotFoundError where there is no entry."""
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
    """To the nanosecond: the kernel's own time of files moves in steps of milliseconds, in which two uses would tie."""
    now_ns = time.time_ns()
    with suppress(OSError):  # of another user, and then theirs is the word on when it was used
        os.utime(lock, ns=(now_ns, now_ns))


def _let_go(lock: int) -> None:
    mark_used(lock)
    os.close(lock)


def _size(folder: Path) -> int:
    """Of a folder that others may be writing or removing."""
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
