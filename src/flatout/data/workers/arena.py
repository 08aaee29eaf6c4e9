"""Memory shared between two processes through a file descriptor. It has no name, so it is freed however the processes end."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from functools import cached_property
from typing import Any

import numpy as np
import torch

from flatout.data.source import Batch, Schema

_ALIGN = 64
_HEADER_BYTES = 64


def open_memory(size: int) -> int:
    """A descriptor of `size` bytes of memory; on systems without memfd_create, of a deleted temporary file."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("flatout", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, max(size, 1))
    return descriptor


def aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class ArenaLayout:
    """Where `rows` rows of each column are stored, after a header with the reading progress."""

    def __init__(self, schema: Schema, rows: int) -> None:
        self.schema = dict(schema)
        self.rows = rows
        self._offsets: dict[str, int] = {}
        self.size = _HEADER_BYTES
        for name, column in self.schema.items():
            self._offsets[name] = self.size
            self.size += aligned(rows * column.row_bytes)

    def columns(self, buffer: Any) -> Batch:
        return {name: self._column(name, buffer) for name in self.schema}

    def _column(self, name: str, buffer: Any) -> torch.Tensor:
        column = self.schema[name]
        shape = (self.rows, *column.shape)
        if not math.prod(shape):
            return torch.empty(shape, dtype=column.dtype)
        flat = torch.frombuffer(buffer, dtype=column.dtype, count=math.prod(shape), offset=self._offsets[name])
        return flat.view(shape)


class WorkerMemory:
    """Rows that a worker writes and its owner reads: `columns`, the same as NumPy `arrays`, and the current sample."""

    def __init__(self, layout: ArenaLayout, buffer: Any) -> None:
        self.columns = layout.columns(buffer)
        self.arrays: dict[str, Any] = {n: c.numpy() for n, c in self.columns.items() if c.dtype is not torch.bfloat16}
        self._header: Any = np.frombuffer(buffer, dtype=np.int64, count=2)

    @cached_property
    def rows(self) -> dict[str, tuple[torch.Tensor, ...]]:
        """A view of each row of each column."""
        return {name: column.unbind(0) for name, column in self.columns.items()}

    @classmethod
    def shared(cls, layout: ArenaLayout, descriptor: int) -> WorkerMemory:
        return cls(layout, mmap.mmap(descriptor, layout.size))

    @classmethod
    def own(cls, layout: ArenaLayout) -> WorkerMemory:
        return cls(layout, bytearray(layout.size))

    def at(self, sample: int) -> None:
        """Note the sample that is read next: the owner sees which one hangs."""
        self._header[1] = sample
        self._header[0] += 1

    @property
    def ticks(self) -> int:
        return int(self._header[0])

    @property
    def sample(self) -> int:
        return int(self._header[1])
