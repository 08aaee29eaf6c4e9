"""The Source interface: a schema, a length, and rows read as one batch. The Transform interface: a batch to a batch.

A batch is a dict from column to tensor; targets are under "y", inputs by default under "x".
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.files.bad import Bad
from flatout.data.offers import PlacedRows, RowsByLength, SampleStream, Take
from flatout.data.order.keyed import Keys

Batch = dict[str, Tensor]

HASH_WHOLE_BYTES = 32 << 20
PIECES, PIECE_BYTES = 256, 64 << 10
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True)
class Column:
    """The type and shape of one row of a column.

    Rows of a `ragged` column differ in length and are concatenated in one flat tensor; `ragged` is their mean length.
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


class Transform(Protocol):
    """Runs on the device: batched, with shapes known in advance, random only through keys.

    After a first run on a device it can be captured in a CUDA graph: it makes no values on the host and never waits.
    """

    def describe(self, schema: Schema) -> dict[str, Column]:
        """The schema after the transform; DataError if it does not fit."""
        ...

    def __call__(self, batch: Batch, keys: Keys) -> Batch: ...

    def written(self) -> Any:
        """As a recipe writes it; `parse_transforms` gives an equal transform back."""
        ...


def describe_all(transforms: Sequence[Transform], schema: Schema) -> dict[str, Column]:
    """The schema after all transforms."""
    for transform in transforms:
        schema = transform.describe(schema)
    return dict(schema)


def apply(transforms: Sequence[Transform], batch: Batch, keys: Keys) -> Batch:
    for transform in transforms:
        batch = transform(batch, keys)
    return batch


def rehearse(transforms: Sequence[Transform], batch: Batch) -> None:
    """Runs the transforms on one row before training, so that constants are on the device before a graph is captured."""
    if transforms:
        none = torch.zeros(1, dtype=torch.int64, device=next(iter(batch.values())).device)
        apply(transforms, batch, Keys(0, none, none))


class Source(ABC):
    """Rows by number. Four members are abstract, all others have defaults.

    Override `stored` and `gather` together to keep something denser than rows. flatout.testing.sources tests all promises
    made here.
    """

    # Description

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
        """None: a stream of unknown length."""
        return len(self)

    @property
    def made_by(self) -> str:
        """The decoder, if another version of it would give other bits."""
        return ""

    @property
    def tokens_per_row(self) -> float:
        """Average, without padding."""
        return 1

    def blocks(self) -> tuple[int, ...]:
        """Sizes of files, row groups or other stretches that are read together. They sum to the length."""
        return (len(self),)

    # Abilities

    @property
    def in_memory(self) -> bool:
        """Whether `read` only copies: no file is opened, nothing is decoded. Then reading ahead is not worth a thread."""
        return False

    @property
    def varies(self) -> bool:
        """Whether a row differs from visit to visit, so that it must not be cached."""
        return False

    @property
    def by_visit(self) -> bool:
        """Whether to read rows with `read_visits`."""
        return False

    @property
    def alone(self) -> bool:
        """Whether rows must be read while training waits: they use the random number generators of this process."""
        return False

    @property
    def workers(self) -> int | None:
        """The number of its own workers; None: the calling threads read."""
        return None

    @property
    def piece_rows(self) -> int | None:
        """Rows for one thread at a time, if reading takes long. Ragged rows need `sizes` then."""
        return None

    @property
    def stream(self) -> SampleStream | None:
        """The reader of samples in a fixed order. Such a source has no rows by number."""
        return None

    @property
    def by_length(self) -> RowsByLength | None:
        """Makes batches of rows of similar length, if rows differ in length."""
        return None

    @property
    def placed(self) -> PlacedRows | None:
        """Fills a device row by row, if sizes are known before rows are read."""
        return None

    # State

    @property
    def bad(self) -> Bad | None:
        """The samples left out because they could not be read; None: none ever are."""
        return None

    @property
    def degraded(self) -> list[str]:
        """Sentences about problems. There may be more after reading."""
        return []

    # Reading

    @abstractmethod
    def read(self, rows: Tensor) -> Batch:
        """The given rows (int64, on the host), in that order, as tensors on the host."""

    def read_into(self, rows: Tensor, batch: Batch) -> None:
        """Like `read`, into tensors that the caller reuses."""
        for name, column in self.read(rows).items():
            batch[name].copy_(column)

    def read_with(self, rows: Tensor, take: Take) -> Batch:
        """Like `read`, into tensors from `take(column, length)`."""
        schema = self.schema
        if any(column.ragged is not None for column in schema.values()):  # their length is known only after reading
            return {name: take(name, len(column)).copy_(column) for name, column in self.read(rows).items()}
        batch = {name: take(name, len(rows)) for name in schema}
        self.read_into(rows, batch)
        return batch

    def read_visits(self, rows: Tensor, visits: Tensor) -> Batch:
        """Like `read`; `visits` (int64, one a row, from the sampler) distinguish repeated reads of a row."""
        return self.read(rows)

    def column(self, name: str) -> Tensor:
        """One column of all rows. Override it to avoid reading the other columns."""
        return self.read(torch.arange(len(self)))[name]

    @property
    def sizes(self) -> Tensor | None:
        """The number of items of each row's ragged columns, if it is known before reading."""
        return None

    def row_sizes(self, rows: Tensor) -> Tensor:
        """The sizes of some rows as they would be read now: a bad row may be replaced by one of another size."""
        if self.sizes is None:
            raise DataError(f"{type(self).__name__} has ragged rows and `piece_rows`, and no `sizes`: override sizes")
        return self.sizes.index_select(0, rows)

    def stand_ins(self, rows: Tensor) -> Tensor | None:
        """A mask of rows that show another row because their own is bad: a cache on disk does not keep those."""
        return None

    def compact(self) -> tuple[Source, tuple[Any, ...]]:
        """The same rows in fewer bytes, for the copy to a device, and the transforms that restore the columns there."""
        return self, ()

    def release(self) -> None:  # noqa: B027 (most sources have nothing to do)
        """Called when nothing more will be read: writes what is kept for other runs. It can still be read."""

    # All rows at once

    @property
    def stored_bytes(self) -> int:
        """The bytes that `stored` takes on a device."""
        return len(self) * sum(column.row_bytes for column in self.schema.values())

    def stored(self) -> dict[str, Tensor]:
        """All rows, in the form that `gather` picks from."""
        return self.read(torch.arange(len(self)))

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        """Rows of the result of `stored` on any device, without waiting for the device or shapes that depend on values."""
        return {name: pick_rows(column, rows) for name, column in stored.items()}

    def at_hand(self) -> Mapping[str, Tensor] | None:
        """The result of `stored`, as soon as all rows have been read into memory; None until then."""
        return None

    # Batches

    @property
    def batch_tokens(self) -> int | None:
        """The most tokens of a training batch, including padding; None: batches are counted in rows."""
        return None

    @property
    def shapes_vary(self) -> bool:
        """Whether training batches differ in shape: `by_length` makes them."""
        return self.batch_tokens is not None

    def rows_per_batch(self, batch: int) -> float:
        """The average rows of a training batch of at most `batch`."""
        return batch

    def stored_rows(self, batch: int) -> int:
        """How many rows, at most `batch`, to take at a time in storage order."""
        return batch

    def typical_batch(self, batch: int) -> tuple[int, Schema]:
        """Rows and columns of an average training batch."""
        return batch, self.schema

    def padded_to(self, longest: int) -> Source:
        """The same rows for a model that takes `longest` tokens, if rows differ in length."""
        return self


class ArraySource(Source):
    """Columns in memory."""

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
    """NumPy picks small batches on a CPU: torch would wake its threads, which stall on shared cores."""
    row_bytes = column.element_size() * math.prod(column.shape[1:])
    if column.device.type != "cpu" or column.dtype == torch.bfloat16 or len(rows) * row_bytes > _SMALL_BYTES:
        return column.index_select(0, rows)
    return torch.from_numpy(column.numpy().take(rows.numpy(), 0))


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, types, shapes and content; of large tensors, of pieces spread evenly over them."""
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
