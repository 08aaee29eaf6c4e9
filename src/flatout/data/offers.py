"""Optional abilities of a source: `stream`, `by_length` and `placed`, None if it does not have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from flatout.base.errors import UsageError

Take = Callable[[str, int], Tensor]
"""Allocates a column: a tensor of that many rows, or of that many items of a ragged column."""


def fill_buffers(batch: Mapping[str, Tensor]) -> Take:
    """Takes columns from buffers that the caller reuses; of a ragged column, as much as is needed."""

    def take(name: str, length: int) -> Tensor:
        if len(batch[name]) < length:
            raise UsageError(f"the buffer for {name!r} holds {len(batch[name])} items, this batch has {length}")
        return batch[name][:length]

    return take


@dataclass(frozen=True)
class StreamState:
    """The state of a dataset (or of its iterator) before sample `place` of pass `number`."""

    number: int
    place: int
    state: Any
    of_iterator: bool


@dataclass(frozen=True)
class Go:
    """Continue at sample `place` of pass `number`, from a snapshot or from the start of that pass."""

    number: int
    place: int
    snapshot: StreamState | None = None


@dataclass(frozen=True)
class Skip:
    """Skip so many samples, over as many passes as needed."""

    samples: int


@dataclass
class Taken:
    """The samples that were taken: their passes and places. `ends` are the lengths of the passes that ended."""

    places: Any
    passes: Any
    snapshot: StreamState | None
    ends: list[int] = field(default_factory=list)


class StreamReader(Protocol):
    """Reads a stream. Used by one thread at a time."""

    def begin(self, at: Go | Skip) -> None:
        """Continue at another place."""
        ...

    def take(self, samples: int) -> tuple[Taken, Mapping[str, Tensor]]:
        """The next samples and their columns, which are valid until the next call and may be longer than needed."""
        ...

    def close(self) -> None: ...


class SampleStream(Protocol):
    """Samples in a fixed order, not available by number. `length` is that of a pass, if it is known."""

    @property
    def name(self) -> str: ...

    @property
    def length(self) -> int | None: ...

    @property
    def resumes(self) -> bool:
        """Whether it can continue from a snapshot; if not, it is read again up to that place."""
        ...

    def reader(self, most: int) -> StreamReader:
        """A reader that takes at most `most` samples at a time."""
        ...


@dataclass(frozen=True)
class PlannedBatch:
    """One batch of rows of similar length, and the length to pad them to."""

    rows: Tensor
    length: int


class BatchPlan(Protocol):
    """Batches of rows of similar length. Every epoch has batches of the same shapes."""

    @property
    def epoch_rows(self) -> int: ...

    @property
    def epoch_batches(self) -> int: ...

    @property
    def padding(self) -> float:
        """The share of padding among the tokens."""
        ...

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """All (rows, length) of batches, longest first."""
        ...

    def plan(self, epoch: int) -> Sequence[PlannedBatch]: ...


class RowsByLength(Protocol):
    """Rows of different lengths, which can be padded to any length that fits all rows of a batch."""

    @property
    def lengths(self) -> Tensor: ...

    def stored(self) -> dict[str, Tensor]: ...

    def padded(self, stored: Mapping[str, Tensor], rows: Tensor, length: int) -> dict[str, Tensor]:
        """Rows of the result of `stored`, padded to `length`."""
        ...

    def buckets(self, batch: int, seed: int = 0, world: int = 1, tokens: int | None = None) -> BatchPlan:
        """Batches of at most `batch` rows and `tokens` tokens, on each of `world` processes."""
        ...

    def buckets_of(self, rows: Tensor, batch: int) -> BatchPlan:
        """Batches of some rows; a plan's rows are places in `rows`."""
        ...


class PlacedRows(Protocol):
    """Photos whose sizes are known before they are read: a device can be filled one by one."""

    @property
    def sizes(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def shown(self, rows: Tensor) -> Tensor:
        """The photo shown for each row: its own, or a replacement. Changes only when a photo turns out to be bad."""
        ...

    def laid_out(self, pixels: Tensor, start: Tensor) -> dict[str, Tensor]:
        """The input of `gather`, for photos that start at these places in `pixels`."""
        ...

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]: ...
