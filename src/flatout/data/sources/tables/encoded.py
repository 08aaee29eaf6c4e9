"""Encoded rows: in memory while they are few, else in files that are mapped, so that a table may be larger than memory.

A folder of rows has one raw file a column and `rows.json`, which says what they hold. It appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.cache.entries import hold
from flatout.data.source import ArraySource, Batch, Column, Source

Array = np.ndarray[Any, Any]

MEMORY_BYTES = 2 << 30
"""Encoded rows of one part that take more are kept on disk; so are raw rows, read again in each pass."""

BLOCK_ROWS = 1 << 16
_ABOUT = "rows.json"


class RowFiles(Source):
    """Rows of a folder, mapped: the operating system keeps of them in memory what it has room for.

    A `passing` folder goes when the source does.
    """

    def __init__(self, folder: Path, passing: bool = False) -> None:
        self._folder = folder
        self._held = None if passing else hold(folder.parent)
        if passing:
            weakref.finalize(self, shutil.rmtree, folder.parent, ignore_errors=True)
        about = _read_about(folder)
        self._rows: int = about["rows"]
        self._digest: str = about["digest"]
        self._columns: dict[str, Array] = {
            name: np.memmap(folder / name, dtype=kind["dtype"], mode="r", shape=(self._rows, *kind["shape"]))
            for name, kind in about["columns"].items()
        }

    @property
    def schema(self) -> dict[str, Column]:
        return {
            name: Column(torch.from_numpy(np.empty(0, dtype=column.dtype)).dtype, tuple(column.shape[1:]))
            for name, column in self._columns.items()
        }

    @property
    def in_memory(self) -> bool:
        """Mapped: reading is a copy."""
        return True

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: Tensor) -> Batch:
        places = rows.numpy()
        return {name: torch.from_numpy(np.asarray(column[places])) for name, column in self._columns.items()}

    def blocks(self) -> tuple[int, ...]:
        return tuple(min(BLOCK_ROWS, self._rows - start) for start in range(0, self._rows, BLOCK_ROWS))

    def fingerprint(self) -> str:
        return self._digest

    def __reduce__(self) -> Any:
        return partial(RowFiles, self._folder), ()  # a mapping would travel as all its bytes


def rows_on_disk(folder: Path, pieces: Iterable[Mapping[str, Array]]) -> RowFiles:
    """Writes pieces of rows one after the other; an existing folder stays as it is. What is left of a failure is removed."""
    if not is_complete(folder):
        writer = RowWriter(folder)
        try:
            for piece in pieces:
                writer.add(piece)
            writer.finish()
        finally:
            writer.discard()
    return RowFiles(folder)


def kept_rows(folder: Path) -> RowFiles | None:
    """Of an earlier run, if all of them are there."""
    held = hold(folder.parent)  # from before the look on: what is there must not go in between
    rows = RowFiles(folder) if is_complete(folder) else None
    if held is not None:
        held.close()
    return rows


def is_complete(folder: Path) -> bool:
    """Whether all rows are there, at the lengths they were written with."""
    try:
        about = _read_about(folder)
        sizes = {name: (folder / name).stat().st_size for name in about["columns"]}
    except (OSError, DataError):
        return False
    return all(sizes[name] == about["rows"] * _row_bytes(kind) for name, kind in about["columns"].items())


class RowWriter:
    """Appends to files in a folder of its own beside the final one, whose name it takes in `finish`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._aside = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:12]}.part")
        self._held = hold(folder.parent, make=True)
        self._aside.mkdir()
        self._files: dict[str, Any] = {}
        self._kinds: dict[str, dict[str, Any]] = {}
        self._digests: dict[str, Any] = {}
        self._rows = 0

    def add(self, piece: Mapping[str, Array]) -> None:
        for name, column in piece.items():
            if name not in self._files:
                self._files[name] = (self._aside / name).open("wb")
                self._kinds[name] = {"dtype": column.dtype.name, "shape": list(column.shape[1:])}
                self._digests[name] = hashlib.blake2b(digest_size=16)
            content = np.ascontiguousarray(column).tobytes()
            self._digests[name].update(content)
            self._files[name].write(content)
        self._rows += len(next(iter(piece.values())))

    def finish(self) -> None:
        self._close(sync=True)
        hashed = {name: digest.hexdigest() for name, digest in self._digests.items()}
        content = json.dumps([self._rows, self._kinds, hashed], sort_keys=True)
        about = {
            "rows": self._rows,
            "columns": self._kinds,
            "digest": hashlib.blake2b(content.encode(), digest_size=16).hexdigest(),
        }
        (self._aside / _ABOUT).write_text(json.dumps(about))
        if self.folder.exists() and not is_complete(self.folder):
            shutil.rmtree(self.folder)
        try:
            self._aside.rename(self.folder)
        except OSError:
            if not is_complete(self.folder):  # else another process was first, with the same rows
                raise

    def discard(self) -> None:
        self._close()
        shutil.rmtree(self._aside, ignore_errors=True)
        if self._held is not None:
            self._held.close()

    def _close(self, sync: bool = False) -> None:
        for file in self._files.values():
            if not file.closed:
                file.flush()
                if sync:
                    os.fsync(file.fileno())
                file.close()


class Gathering:
    """Takes encoded rows piece by piece; when they take more than MEMORY_BYTES, all of them go to `folder`.

    Without a folder they go to one that lasts as long as the source.
    """

    def __init__(self, folder: Path | None = None, rows: int | None = None) -> None:
        """`rows` is how many there will be, or a first guess."""
        self._folder = folder
        self._columns: dict[str, Array] = {}
        self._room = rows or BLOCK_ROWS
        self._rows = 0
        self._writer: RowWriter | None = None

    def add(self, piece: Mapping[str, Array]) -> None:
        count = len(next(iter(piece.values())))
        if self._writer is None and not self._has_room(piece, self._rows + count):
            self._writer = RowWriter(self._folder or Path(tempfile.mkdtemp(prefix="flatout-rows-")) / "rows")
            if self._rows:
                self._writer.add({name: column[: self._rows] for name, column in self._columns.items()})
            self._columns = {}
        if self._writer is not None:
            self._writer.add(piece)
        else:
            for name, column in piece.items():
                self._columns[name][self._rows : self._rows + count] = column
        self._rows += count

    def finish(self) -> Source | None:
        """None where there was no row."""
        if self._writer is not None:
            self._writer.finish()
            return RowFiles(self._writer.folder, passing=self._folder is None)
        columns = {name: torch.from_numpy(column[: self._rows]) for name, column in self._columns.items()}
        return ArraySource(columns) if self._rows else None

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()

    def _has_room(self, piece: Mapping[str, Array], rows: int) -> bool:
        """Makes room in memory; False when that would be more than is allowed."""
        grows = bool(self._columns) and rows > self._room
        room = max(rows, 2 * self._room) if grows else max(rows, self._room)
        row_bytes = sum(column.dtype.itemsize * math.prod(column.shape[1:]) for column in piece.values())
        if room * row_bytes > MEMORY_BYTES:
            room = rows  # a guess may be too high
        if room * row_bytes > MEMORY_BYTES:
            return False
        if not self._columns or grows:
            self._room = room
            larger = {name: np.empty((room, *column.shape[1:]), dtype=column.dtype) for name, column in piece.items()}
            for name, column in self._columns.items():
                larger[name][: self._rows] = column[: self._rows]
            self._columns = larger
        return True


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / _ABOUT).read_text())
        return about
    except ValueError as error:
        raise DataError(f"{folder / _ABOUT} is damaged ({error}): remove {folder}, it will be made anew") from error


def _row_bytes(kind: Mapping[str, Any]) -> int:
    return int(np.dtype(kind["dtype"]).itemsize * np.prod(kind["shape"], dtype=np.int64))
