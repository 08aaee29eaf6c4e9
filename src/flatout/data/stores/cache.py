"""A folder of prepared rows, kept between runs: one entry a key, and a key is a hash of all that the rows depend on.

    <folder>/alone                  locked for the moments in which entries come and go
    <folder>/<key>/manifest.json    how many rows, which columns
    <folder>/<key>/in-use           locked (shared) by whoever has the entry open; its time is that of the last use
    <folder>/<key>/filling          locked by the one process that adds parts
    <folder>/<key>/part-000007      some of the rows, with checksums

Whatever changes the rows changes the key, so a stale entry is one that nobody asks for: it goes when room is needed, the least
recently used one first, never one in use. Files are written aside, synced and renamed. Locks go with their process, however
that ends; what a killed one left half-written is swept by the next that fills the entry.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flatout.base.files import sync_folder, write_bytes
from flatout.base.units import parse_bytes, show_bytes
from flatout.data.source import Schema, Source
from flatout.data.stores.records import Layout

VERSION = 1  # of the code that prepares and keeps rows: raise it when either changes what is read back
_KEY = re.compile(r"[0-9a-f]{32}")


class CacheFull(Exception):
    """No room within the budget; the message says why in words."""


def cache_key(source: Source, preparation: str = "") -> str:
    """Of the source's content, what was done to its rows (in any stable wording), their form and this code's version."""
    identity = [VERSION, sys.byteorder, source.fingerprint(), preparation, len(source), _written(source.schema)]
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()


def disk_bytes(cache: Path | None, budget: str) -> int:
    """What caches of data may take: as told, or half of what they and the free space are together."""
    if cache is None:
        return 0
    if budget != "auto":
        return parse_bytes(budget)
    place = cache
    while not place.exists():
        place = place.parent
    return (shutil.disk_usage(place).free + Cache(cache / "rows").used_bytes()) // 2


class Cache:
    """A cache that can't be used costs time, never a run: `degraded` says what went wrong."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.degraded: list[str] = []

    def open(self, key: str) -> CacheEntry | None:
        """The entry, if there is one; it can't be evicted until it is closed."""
        try:
            with self.alone():
                return self._opened(key)
        except OSError as error:
            if self.folder.is_dir():
                self._give_up(error)
            return None

    def build(self, key: str, schema: Schema, rows: int) -> CacheEntry | None:
        """The entry, made if need be. None: the folder can't be used, and `degraded` says why."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self.alone():
                entry = self._opened(key)
                if entry is None:
                    folder = self.folder / key
                    folder.mkdir(exist_ok=True)
                    (folder / "in-use").touch()
                    manifest = {"version": VERSION, "key": key, "rows": rows, "columns": _written(schema)}
                    write_bytes(folder / "manifest.json", json.dumps(manifest, indent=2).encode() + b"\n")
                    entry = self._opened(key)
            return entry
        except OSError as error:
            self._give_up(error)
            return None

    def used_bytes(self) -> int:
        return sum(_size(folder) for folder in self._folders())

    def room_bytes(self) -> int:
        """What an entry may take at most, once all others are gone."""
        there = next(folder for folder in (self.folder.absolute(), *self.folder.absolute().parents) if folder.is_dir())
        room = shutil.disk_usage(there).free + self.used_bytes()
        return room if self.limit_bytes is None else min(room, self.limit_bytes)

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

    def make_room(self, needed_bytes: int) -> None:
        """Call it while `alone`. Entries that were not used for longest go until there is room; CacheFull if none is left."""
        for leftover in self.folder.glob(".gone-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if self.limit_bytes is None:
            return
        sizes = {folder: _size(folder) for folder in self._folders()}
        used = sum(sizes.values())
        for folder in sorted(sizes, key=_last_used):
            if used + needed_bytes <= self.limit_bytes:
                return
            if self._remove(folder):
                used -= sizes[folder]
        if used + needed_bytes > self.limit_bytes:
            raise CacheFull(
                f"{show_bytes(used)} in use and {show_bytes(needed_bytes)} more are over its limit of "
                f"{show_bytes(self.limit_bytes)}"
            )

    def _opened(self, key: str) -> CacheEntry | None:
        folder = self.folder / key
        try:
            lock = os.open(folder / "in-use", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            manifest = json.loads((folder / "manifest.json").read_bytes())
            if manifest["key"] != key or manifest["version"] != VERSION:
                raise ValueError(f"{folder}/manifest.json is of another entry")
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            os.close(lock)  # killed while it was made, or damaged: nothing in it can be trusted
            self._remove(folder)
            return None
        except BaseException:
            os.close(lock)
            raise
        with suppress(OSError):
            os.utime(lock)
        return CacheEntry(self, folder, lock)

    def _remove(self, folder: Path) -> bool:
        """Unless somebody has it open."""
        gone = folder.with_name(f".gone-{folder.name}")
        try:
            lock = os.open(folder / "in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(folder, gone)  # first out of sight: half an entry is never seen
        except OSError:
            return False
        finally:
            os.close(lock)
        shutil.rmtree(gone, ignore_errors=True)
        return True

    def _folders(self) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if _KEY.fullmatch(path.name)]
        except OSError:  # not there yet, or no folder at all, which `build` then says
            return []

    def _give_up(self, error: OSError) -> None:
        why = f"the cache in {self.folder} can't be used ({error.strerror or error}): rows are read from the source every time"
        if why not in self.degraded:
            self.degraded.append(why)


class CacheEntry:
    """An open entry: shared by any number of processes, of which one may add parts."""

    def __init__(self, cache: Cache, folder: Path, lock: int) -> None:
        self.folder = folder
        self._cache = cache
        self._in_use: int | None = lock
        self._filling: int | None = None

    def take_filling(self) -> bool:
        """Become the one that adds parts; False while another process is. Sweeps what a killed one left."""
        if self._filling is not None:
            return True
        handle = os.open(self.folder / "filling", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._filling = handle
        for leftover in self.folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        return True

    def part_paths(self) -> list[Path]:
        """In the order they were written: where a row is in two of them, the later one counts."""
        return sorted(path for path in self.folder.glob("part-*") if path.name[5:].isdigit())

    def write_part(self, pieces: Iterable[Any], at_most_bytes: int) -> Path:
        """A new part of these pieces, end to end. CacheFull or OSError leave everything as it was."""
        taken = [int(path.name[5:]) for path in self.part_paths()]
        path = self.folder / f"part-{max(taken, default=0) + 1:06d}"
        aside = self.folder / f".{path.name}.tmp"
        try:
            with self._cache.alone():
                self._cache.make_room(at_most_bytes)
                handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                with open(handle, "wb") as file:
                    os.ftruncate(handle, at_most_bytes)  # counts against the budget from now on, for other processes too
            with aside.open("r+b") as file:
                for piece in pieces:
                    file.write(piece)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)
        return path

    def close(self) -> None:
        for lock in (self._filling, self._in_use):
            if lock is not None:
                with suppress(OSError):
                    os.utime(lock)
                os.close(lock)
        self._filling = self._in_use = None


def _written(schema: Schema) -> dict[str, Any]:
    """Without the mean of ragged columns, which is only an estimate."""
    Layout.of(schema)  # says what is wrong with it
    return {
        name: [str(column.dtype).removeprefix("torch."), list(column.shape), column.ragged is not None]
        for name, column in schema.items()
    }


def _size(folder: Path) -> int:
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            with suppress(FileNotFoundError):
                total += file.stat().st_size
    return total


def _last_used(folder: Path) -> int:
    try:
        return (folder / "in-use").stat().st_mtime_ns
    except OSError:
        return 0
