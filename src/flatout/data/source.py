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

from flatout.base.errors import DataError, UsageError
from flatout.data.files.bad import Bad
from flatout.data.offers import PlacedRows, RowsByLength, SampleStream, Take

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
    """Rows by number. All that others ask of a source is declared here: four members are its own, the others have defaults.

    Whoever keeps something denser than rows overrides `stored` and `gather` together. flatout.testing.sources has a test for
    each promise made here.
    """

    # What it is

    @property
    @abstractmethod
    def schema(self) -> dict[str, Column]:
        """The columns of a batch, before transforms."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content, in hex."""

    @property
    def epoch_rows(self) -> int | None:
        """None: a stream whose end nobody knows."""
        return len(self)

    @property
    def made_by(self) -> str:
        """What turns files into rows, where another version of it would make other bits: a decoder."""
        return ""

    @property
    def tokens_per_row(self) -> float:
        """On average, padding not counted."""
        return 1

    def blocks(self) -> tuple[int, ...]:
        """Sizes of the stretches of rows that are read together: files, row groups. They sum to the length."""
        return (len(self),)

    # What it can do

    @property
    def in_memory(self) -> bool:
        """Whether `read` only copies: no file is opened, nothing is decoded. Reading ahead is then not worth a thread."""
        return False

    @property
    def varies(self) -> bool:
        """Whether a row differs from visit to visit, so that keeping it would freeze what was random about it."""
        return False

    @property
    def by_visit(self) -> bool:
        """Whether rows are to be read with `read_visits`."""
        return False

    @property
    def alone(self) -> bool:
        """Whether rows are to be read while training waits, not ahead of it: they draw from the generators of this process."""
        return False

    @property
    def workers(self) -> int | None:
        """How many workers of its own read; None: the threads that call `read` do."""
        return None

    @property
    def piece_rows(self) -> int | None:
        """How many rows are one thread's work, if they take long to read. Ragged rows have `sizes` then."""
        return None

    @property
    def stream(self) -> SampleStream | None:
        """What reads its samples, if they come in an order of their own. Nobody asks such a source for rows by number."""
        return None

    @property
    def by_length(self) -> RowsByLength | None:
        """What makes batches of rows of like length, if rows differ in length."""
        return None

    @property
    def placed(self) -> PlacedRows | None:
        """What fills a device row by row, if sizes are known before rows are read."""
        return None

    # What happened to it

    @property
    def bad(self) -> Bad | None:
        """What was left out because it could not be read; None: nothing ever is."""
        return None

    @property
    def degraded(self) -> list[str]:
        """What is not as it should be, in words. More may come while it is read."""
        return []

    # Reading

    @abstractmethod
    def read(self, rows: Tensor) -> Batch:
        """Any rows (int64, on the host), in the order asked for, as tensors on the host."""

    def read_into(self, rows: Tensor, batch: Batch) -> None:
        """Like `read`, into tensors that the caller reuses."""
        for name, column in self.read(rows).items():
            batch[name].copy_(column)

    def read_with(self, rows: Tensor, take: Take) -> Batch:
        """Like `read`, written to where `take(column, length)` says."""
        schema = self.schema
        if any(column.ragged is not None for column in schema.values()):  # how long they are is known once they are read
            return {name: take(name, len(column)).copy_(column) for name, column in self.read(rows).items()}
        batch = {name: take(name, len(rows)) for name in schema}
        self.read_into(rows, batch)
        return batch

    def read_visits(self, rows: Tensor, visits: Tensor) -> Batch:
        """Like `read`; `visits` (int64, one a row, as samplers make them) tell apart the times that a row comes."""
        return self.read(rows)

    def column(self, name: str) -> Tensor:
        """One column of all rows. Whoever has it without reading the rest overrides this."""
        return self.read(torch.arange(len(self)))[name]

    @property
    def sizes(self) -> Tensor | None:
        """Items of each row's ragged columns, if they are known before rows are read."""
        return None

    def row_sizes(self, rows: Tensor) -> Tensor:
        """Those of some rows, as they would be read now: a row that can't be read may be replaced by one of another size."""
        if self.sizes is None:
            raise DataError(f"{type(self).__name__} has ragged rows and `piece_rows`, and no `sizes`: override sizes")
        return self.sizes.index_select(0, rows)

    def stand_ins(self, rows: Tensor) -> Tensor | None:
        """Which of them show another row, their own being bad (bool): a cache that outlives the run does not keep those."""
        return None

    def compact(self) -> tuple[Source, tuple[Any, ...]]:
        """The same rows in fewer bytes, for the way to a device, and the transforms that make columns of them there."""
        return self, ()

    def release(self) -> None:  # noqa: B027 (most sources have nothing to do)
        """Whoever placed it in a tier reads no more of it: what is kept for other runs is written. It can still be read."""

    # All rows at once

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

    def at_hand(self) -> Mapping[str, Tensor] | None:
        """What `stored` gives, once all rows have come to be in memory though they were not at first; None until then."""
        return None

    # Batches

    @property
    def batch_tokens(self) -> int | None:
        """The most tokens of a training batch, padding included; None: batches are counted in rows."""
        return None

    @property
    def shapes_vary(self) -> bool:
        """Whether training batches differ in their shapes: they are made by `by_length`."""
        return self.batch_tokens is not None

    def rows_per_batch(self, batch: int) -> float:
        """On average, of a training batch of at most so many."""
        return batch

    def stored_rows(self, batch: int) -> int:
        """How many of at most so many to take at a time in the order they are stored."""
        return batch

    def typical_batch(self, batch: int) -> tuple[int, Schema]:
        """Rows and columns of a training batch of middling size."""
        return batch, self.schema

    def padded_to(self, longest: int) -> Source:
        """The same rows beside a model that takes so many tokens, if rows differ in length."""
        return self


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


def fill_buffers(batch: Batch) -> Take:
    """Out of buffers that the caller reuses; of a ragged column's one, as much from its beginning as is needed."""

    def take(name: str, length: int) -> Tensor:
        if len(batch[name]) < length:
            raise UsageError(f"the buffer for {name!r} holds {len(batch[name])} items, this batch has {length}")
        return batch[name][:length]

    return take


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
