"""A folder of prepared rows, kept between runs: one entry a key, and a key is a hash of all that the rows depend on.

    <folder>/rows/<key>/manifest.json    how many rows, which columns
    <folder>/rows/<key>/filling          locked by the one process that adds parts
    <folder>/rows/<key>/part-000007      some of the rows, with checksums

Whatever changes the rows changes the key, so a stale entry is one that nobody asks for: it goes when room is needed, the least
recently used one first, never one in use (entries.py). The limit is on everything in the folder: encoded text and tables count
too, and go like rows. Files are written aside, synced and renamed; what a killed process left half-written is swept by the
next that fills the entry.
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

VERSION = 1  # of the code that prepares and keeps rows: raise it when either changes what is read back


class CacheFull(Exception):
    """No room within the budget; the message says why in words."""


def cache_key(source: Source, preparation: str = "") -> str:
    """Of the source's content, what was done to its rows (in any stable wording), their form and this code's version."""
    content = [source.fingerprint(), source.made_by, len(source), _written(source.schema)]
    identity = [VERSION, sys.byteorder, preparation, *content]
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()


def disk_bytes(cache: Path | None, budget: str) -> int:
    """What a cache may take: as told, or half of what it and the free space are together."""
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
    """A cache that can't be used costs time, never a run: `degraded` says what went wrong."""

    def __init__(self, folder: Path, limit_bytes: int | None = None, compression: str = "none") -> None:
        """`compression`: of the parts that are written from now on. Those that are there say their own."""
        self.folder = folder = private_cache(folder)
        self.limit_bytes = limit_bytes
        self.compression = check_compression(compression)
        self._entries = Entries(folder)
        self.degraded: list[str] = []

    def open(self, key: str) -> CacheEntry | None:
        """The entry, if there is one; it can't be evicted until it is closed."""
        try:
            with self._entries.alone():
                return self._opened(key)
        except OSError as error:
            if self.folder.is_dir():
                self._give_up(error)
            return None

    def build(self, key: str, schema: Schema, rows: int) -> CacheEntry | None:
        """The entry, made if need be. None: the folder can't be used, and `degraded` says why."""
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
        """By all that is kept in the folder, rows or not."""
        return self._entries.used_bytes()

    def room_bytes(self) -> int:
        """What an entry may take at most, once all others are gone."""
        there = next(folder for folder in (self.folder.absolute(), *self.folder.absolute().parents) if folder.is_dir())
        room = shutil.disk_usage(there).free + self.used_bytes()
        return room if self.limit_bytes is None else min(room, self.limit_bytes)

    def make_room(self, needed_bytes: int, write: Callable[[], None]) -> None:
        """`write` takes its room while no other process can: what was not used for longest goes first. CacheFull without it."""
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
        """What is over the limit goes, but for what is in use. Where that alone is too much: so much, in words."""
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
                raise ValueError(f"{folder}/manifest.json is of another entry")
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            os.close(lock)  # killed while it was made, or damaged: nothing in it can be trusted
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
    """An open entry: shared by any number of processes, of which one may add parts."""

    def __init__(self, cache: Cache, folder: Path, lock: int) -> None:
        self.folder = folder
        self.cache_folder = cache.folder
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

        def take() -> None:
            with aside.open("wb") as file:
                os.ftruncate(file.fileno(), at_most_bytes)  # counts against the budget from now on, for other processes too

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
    """Without the mean of ragged columns, which is only an estimate."""
    RecordLayout.of(schema)  # says what is wrong with it
    return {
        name: [str(column.dtype).removeprefix("torch."), list(column.shape), column.ragged is not None]
        for name, column in schema.items()
    }
