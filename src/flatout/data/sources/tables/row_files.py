"""Encoded rows in memory-mapped files, for tables larger than memory.

A folder has one raw file for each column, and `rows.json` with their types. It is renamed into place when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
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
from flatout.data.source import Batch, Column, Source

Array = np.ndarray[Any, Any]

BLOCK_ROWS = 1 << 16
_ABOUT = "rows.json"


class RowFiles(Source):
    """The rows of a folder, memory-mapped. A `passing` folder is removed with the source."""

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
        """Memory-mapped: reading only copies."""
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
        return partial(RowFiles, self._folder), ()  # pickling a memory map would copy all its bytes


def rows_on_disk(folder: Path, pieces: Iterable[Mapping[str, Array]]) -> RowFiles:
    """Writes pieces of rows one after the other. A complete folder is not written again; a failure leaves nothing behind."""
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
    """The rows that an earlier run kept, if they are complete."""
    held = hold(folder.parent)  # before looking: the folder must not be removed in between
    rows = RowFiles(folder) if is_complete(folder) else None
    if held is not None:
        held.close()
    return rows


def is_complete(folder: Path) -> bool:
    """Whether all files exist with the sizes that rows.json says."""
    try:
        about = _read_about(folder)
        sizes = {name: (folder / name).stat().st_size for name in about["columns"]}
    except (OSError, DataError):
        return False
    return all(sizes[name] == about["rows"] * _row_bytes(kind) for name, kind in about["columns"].items())


class RowWriter:
    """Appends to files in a temporary folder, which `finish` renames to `folder`."""

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
            if not is_complete(self.folder):  # else another process wrote the same rows first
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


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / _ABOUT).read_text())
        return about
    except ValueError as error:
        raise DataError(f"{folder / _ABOUT} is damaged ({error}): remove {folder}, it will be written again") from error


def _row_bytes(kind: Mapping[str, Any]) -> int:
    return int(np.dtype(kind["dtype"]).itemsize * np.prod(kind["shape"], dtype=np.int64))
