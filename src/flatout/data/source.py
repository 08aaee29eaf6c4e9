"""What every kind of data is to the rest: a schema, a length, and rows read as one batch.

A batch is a plain dict from column to tensor; targets are under "y", inputs by default under "x".
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Tensor]

HASH_WHOLE_BYTES = 32 << 20
PIECES, PIECE_BYTES = 256, 64 << 10
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True)
class Column:
    """One row's worth of a column.

    Rows of a `ragged` column differ in length and lie end to end in one flat tensor; it is the mean number of items a row.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    ragged: float | None = None

    @property
    def row_bytes(self) -> int:
        items = math.prod(self.shape) if self.ragged is None else math.ceil(self.ragged)
        return self.dtype.itemsize * items

    def written(self) -> dict[str, object]:
        kind: dict[str, object] = {"dtype": str(self.dtype).removeprefix("torch."), "shape": list(self.shape)}
        return kind if self.ragged is None else {**kind, "ragged": round(self.ragged, 1)}


Schema = Mapping[str, Column]


class Source(ABC):
    """Rows by number. Whoever keeps something denser than rows overrides `stored` and `gather` together."""

    @property
    @abstractmethod
    def schema(self) -> dict[str, Column]:
        """The columns of a batch, before transforms."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, rows: Tensor) -> Batch:
        """Any rows (int64, on the host), in the order asked for, as tensors on the host."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content, in hex."""

    def read_into(self, rows: Tensor, batch: Batch) -> None:
        """Like `read`, into tensors that the caller reuses."""
        for name, column in self.read(rows).items():
            batch[name].copy_(column)

    def column(self, name: str) -> Tensor:
        """One column of all rows. Whoever has it without reading the rest overrides this."""
        return self.read(torch.arange(len(self)))[name]

    def compact(self) -> tuple[Source, tuple[Any, ...]]:
        """The same rows in fewer bytes, for the way to a device, and the transforms that make columns of them there."""
        return self, ()

    def blocks(self) -> tuple[int, ...]:
        """Sizes of the stretches of rows that are read together: files, row groups. They sum to the length."""
        return (len(self),)

    @property
    def made_by(self) -> str:
        """What turns files into rows, where another version of it would make other bits: a decoder."""
        return ""

    @property
    def tokens_per_row(self) -> float:
        """On average, padding not counted."""
        return 1

    @property
    def shapes_vary(self) -> bool:
        """Whether batches differ in their shapes."""
        return False

    def rows_per_batch(self, batch: int) -> float:
        """On average, of a training batch of at most so many."""
        return batch

    def stored_rows(self, batch: int) -> int:
        """How many of at most so many to take at a time in the order they are stored."""
        return batch

    def typical_batch(self, batch: int) -> tuple[int, Schema]:
        """Rows and columns of a training batch of middling size."""
        return batch, self.schema

    @property
    def epoch_rows(self) -> int | None:
        """None: a stream whose end nobody knows."""
        return len(self)

    @property
    def varies(self) -> bool:
        """Whether a row differs from visit to visit, so that keeping it would freeze what was random about it."""
        return False

    @property
    def in_memory(self) -> bool:
        """Whether `read` only copies: no file is opened, nothing is decoded. Reading ahead is then not worth a thread."""
        return False

    @property
    def stored_bytes(self) -> int:
        """What `stored` would take on a device."""
        return len(self) * sum(column.row_bytes for column in self.schema.values())

    def stored(self) -> dict[str, Tensor]:
        """Everything, in the form that `gather` takes rows from."""
        return self.read(torch.arange(len(self)))

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        """Rows of what `stored` gave, moved to any device: no waiting for the device, no shape that depends on values."""
        return {name: pick_rows(column, rows) for name, column in stored.items()}


class ArraySource(Source):
    """Columns that are in memory whole."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self._columns = dict(columns)
        self._length = len(next(iter(self._columns.values())))

    @property
    def schema(self) -> dict[str, Column]:
        return {name: Column(column.dtype, tuple(column.shape[1:])) for name, column in self._columns.items()}

    def __len__(self) -> int:
        return self._length

    @property
    def in_memory(self) -> bool:
        return True

    def read(self, rows: Tensor) -> Batch:
        return self.gather(self._columns, rows)

    def read_into(self, rows: Tensor, batch: Batch) -> None:
        for name, column in self._columns.items():
            torch.index_select(column, 0, rows, out=batch[name])

    def stored(self) -> dict[str, Tensor]:
        return dict(self._columns)

    def column(self, name: str) -> Tensor:
        return self._columns[name]

    def fingerprint(self) -> str:
        return hash_tensors(self._columns)


def pick_rows(column: Tensor, rows: Tensor) -> Tensor:
    """On a CPU NumPy picks a small batch: torch would wake its threads for it, which stall where cores are shared."""
    row_bytes = column.element_size() * math.prod(column.shape[1:])
    if column.device.type != "cpu" or column.dtype == torch.bfloat16 or len(rows) * row_bytes > _SMALL_BYTES:
        return column.index_select(0, rows)
    return torch.from_numpy(column.numpy().take(rows.numpy(), 0))


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, types, shapes and content; of large tensors, of pieces spread evenly over the content."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        content: Any = tensor.flatten().view(torch.uint8).numpy()
        if len(content) <= HASH_WHOLE_BYTES:
            digest.update(content)
        else:
            for piece in range(PIECES):
                start = (len(content) - PIECE_BYTES) * piece // (PIECES - 1)
                digest.update(content[start : start + PIECE_BYTES])
    return digest.hexdigest()
