"""A folder with prepared rows, kept between runs. Each entry has a key: a hash of everything that its rows depend on.

    <folder>/rows/<key>/manifest.json    number of rows, columns
    <folder>/rows/<key>/filling          locked by the process that adds parts
    <folder>/rows/<key>/part-000007      some of the rows, with checksums

Whatever changes the rows changes the key, so a stale entry is never read. When room is needed, the least recently used entry is
deleted, never one in use (entries.py). The limit is on the whole folder: encoded text and tables count too and are deleted in
the same way. Files are written under another name, synced and renamed; half-written files of a killed process are deleted by
the next process that fills the entry.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.base.files import sync_folder, write_bytes
from flatout.base.trust import private_cache
from flatout.base.units import parse_bytes, show_bytes
from flatout.data.cache.compression import check_compression
from flatout.data.cache.entries import Entries, lock_shared, mark_used
from flatout.data.cache.records import RecordLayout
from flatout.data.source import Schema, Source

VERSION = 1  # raise it when preparing or keeping rows changes what is read back


class CacheFull(Exception):
    """No room within the disk budget; the message says why."""


def cache_key(source: Source, preparation: str = "") -> str:
    """A hash of the source's content, the preparation of its rows (any stable text), their schema, and VERSION."""
    content = [source.fingerprint(), source.made_by, len(source), _written(source.schema)]
    identity = [VERSION, sys.byteorder, preparation, *content]
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()


def disk_bytes(cache: Path | None, budget: str) -> int:
    """How much a cache may take: the given budget, or half of its present size and the free space together."""
    if cache is None:
        return 0
    cache = private_cache(cache)
    if budget != "auto":
        return parse_bytes(budget)
    place = cache
    while not place.exists():
        place = place.parent
    return (shutil.disk_usage(place).free + Entries(cache).used_bytes()) // 2


class Cache:
    """A cache that can't be used never stops a run: `degraded` says what went wrong."""

    def __init__(self, folder: Path, limit_bytes: int | None = None, compression: str = "none") -> None:
        """`compression` is for new parts; existing parts keep theirs."""
        self.folder = folder = private_cache(folder)
        self.limit_bytes = limit_bytes
        self.compression = check_compression(compression)
        self._entries = Entries(folder)
        self.degraded: list[str] = []

    def open(self, key: str) -> CacheEntry | None:
        """The entry, if it exists; it is not evicted until it is closed."""
        try:
            with self._entries.alone():
                return self._opened(key)
        except OSError as error:
            if self.folder.is_dir():
                self._give_up(error)
            return None

    def build(self, key: str, schema: Schema, rows: int) -> CacheEntry | None:
        """The entry, created if needed. None: the folder can't be used, and `degraded` says why."""
        try:
            (self.folder / "rows").mkdir(parents=True, exist_ok=True)
            with self._entries.alone():
                entry = self._opened(key)
                if entry is None:
                    folder = self.folder / "rows" / key
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
        """Size of all entries in the folder, rows or not."""
        return self._entries.used_bytes()

    def room_bytes(self) -> int:
        """How much an entry could take if all others were evicted."""
        there = next(folder for folder in (self.folder.absolute(), *self.folder.absolute().parents) if folder.is_dir())
        room = shutil.disk_usage(there).free + self.used_bytes()
        return room if self.limit_bytes is None else min(room, self.limit_bytes)

    def make_room(self, needed_bytes: int, write: Callable[[], None]) -> None:
        """Evict least recently used entries, then call `write`, while no other process can take the room. Else CacheFull."""
        with self._entries.alone():
            allowed_bytes = None if self.limit_bytes is None else self.limit_bytes - needed_bytes
            used = self._entries.evict(allowed_bytes)
            if self.limit_bytes is not None and used + needed_bytes > self.limit_bytes:
                raise CacheFull(
                    f"{show_bytes(used)} in use and {show_bytes(needed_bytes)} more are over its limit of "
                    f"{show_bytes(self.limit_bytes)}"
                )
            write()

    def trim(self) -> str | None:
        """Evict entries until the limit is kept. Returns a message if the entries in use alone are over the limit."""
        with suppress(OSError), self._entries.alone():
            used = self._entries.evict(self.limit_bytes)
            if self.limit_bytes is not None and used > self.limit_bytes:
                return (
                    f"the cache in {self.folder} takes {show_bytes(used)}, over its limit of {show_bytes(self.limit_bytes)}: "
                    "all of it is in use"
                )
        return None

    def _opened(self, key: str) -> CacheEntry | None:
        folder = self.folder / "rows" / key
        try:
            lock = lock_shared(folder)
        except FileNotFoundError:
            return None
        try:
            manifest = json.loads((folder / "manifest.json").read_bytes())
            if manifest["key"] != key or manifest["version"] != VERSION:
                raise ValueError(f"{folder}/manifest.json belongs to another entry")
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            os.close(lock)  # half-created or damaged
            self._entries.remove(folder)
            return None
        except BaseException:
            os.close(lock)
            raise
        return CacheEntry(self, folder, lock)

    def _give_up(self, error: OSError) -> None:
        why = f"the cache in {self.folder} can't be used ({error.strerror or error}): rows are read from the source every time"
        if why not in self.degraded:
            self.degraded.append(why)


class CacheEntry:
    """An open entry. Any number of processes share it; one of them may add parts."""

    def __init__(self, cache: Cache, folder: Path, lock: int) -> None:
        self.folder = folder
        self.cache_folder = cache.folder
        self._cache = cache
        self._in_use: int | None = lock
        self._filling: int | None = None

    def take_filling(self) -> bool:
        """Become the process that adds parts; False if another process is. Deletes half-written files of a killed process."""
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
        """In the order they were written: if a row is in two parts, the later part counts."""
        return sorted(path for path in self.folder.glob("part-*") if path.name[5:].isdigit())

    def write_part(self, pieces: Iterable[Any], at_most_bytes: int) -> Path:
        """Write a new part from these pieces. CacheFull and OSError change nothing."""
        taken = [int(path.name[5:]) for path in self.part_paths()]
        path = self.folder / f"part-{max(taken, default=0) + 1:06d}"
        aside = self.folder / f".{path.name}.tmp"

        def take() -> None:
            with aside.open("wb") as file:
                os.ftruncate(file.fileno(), at_most_bytes)  # now it counts for other processes too

        try:
            self._cache.make_room(at_most_bytes, take)
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
                mark_used(lock)
                os.close(lock)
        self._filling = self._in_use = None


def _written(schema: Schema) -> dict[str, Any]:
    """As JSON, without the mean length of ragged columns, which is only an estimate."""
    RecordLayout.of(schema)  # raises if the schema is wrong
    return {
        name: [str(column.dtype).removeprefix("torch."), list(column.shape), column.ragged is not None]
        for name, column in schema.items()
    }
