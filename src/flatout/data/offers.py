"""What a source may offer beyond rows by number. It says so by `stream`, `by_length` and `placed`, which are None elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

Take = Callable[[str, int], Tensor]
"""Where a column is to be written: a tensor of that many rows, or of that many items of a ragged column."""


@dataclass(frozen=True)
class StreamState:
    """The state of a dataset (or of its iterator) before sample `place` of pass `number`."""

    number: int
    place: int
    state: Any
    of_iterator: bool


@dataclass(frozen=True)
class Go:
    """To sample `place` of pass `number`, from a snapshot or from the start of that pass."""

    number: int
    place: int
    snapshot: StreamState | None = None


@dataclass(frozen=True)
class Skip:
    """This many samples, over as many passes as they take, without keeping them."""

    samples: int


@dataclass
class Taken:
    """Which samples came: of which pass, at which place in it. `ends` are the lengths of the passes that ended meanwhile."""

    places: Any
    passes: Any
    snapshot: StreamState | None
    ends: list[int] = field(default_factory=list)


class StreamReader(Protocol):
    """Reads a stream from its start on. Used by one thread at a time."""

    def begin(self, at: Go | Skip) -> None:
        """Go on from another place."""
        ...

    def take(self, samples: int) -> tuple[Taken, Mapping[str, Tensor]]:
        """The next samples, and their columns: valid until the next call, and perhaps longer than the samples are many."""
        ...

    def close(self) -> None: ...


class SampleStream(Protocol):
    """Samples in an order of their own, which can't be asked for by number. `length` is that of a pass, if it is known."""

    @property
    def name(self) -> str: ...

    @property
    def length(self) -> int | None: ...

    @property
    def resumes(self) -> bool:
        """Whether it can go on from a snapshot; else it is read again up to where it was."""
        ...

    def reader(self, most: int) -> StreamReader:
        """One that takes at most so many samples at a time."""
        ...


@dataclass(frozen=True)
class PlannedBatch:
    """One batch of rows of like length, and the length that they are padded to."""

    rows: Tensor
    length: int


class BatchPlan(Protocol):
    """Which rows of like length make a batch. The shapes of an epoch's batches are those of every epoch."""

    @property
    def epoch_rows(self) -> int: ...

    @property
    def epoch_batches(self) -> int: ...

    @property
    def padding(self) -> float:
        """The share of the tokens that is padding."""
        ...

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Every (rows, length) that a batch can have, longest first."""
        ...

    def plan(self, epoch: int) -> Sequence[PlannedBatch]: ...


class RowsByLength(Protocol):
    """Rows of differing lengths: a batch of them may be padded to any length that no row of it exceeds."""

    @property
    def lengths(self) -> Tensor: ...

    def stored(self) -> dict[str, Tensor]: ...

    def padded(self, stored: Mapping[str, Tensor], rows: Tensor, length: int) -> dict[str, Tensor]:
        """Rows of what `stored` gave, padded to `length`."""
        ...

    def buckets(self, batch: int, seed: int = 0, world: int = 1, tokens: int | None = None) -> BatchPlan:
        """Batches of at most `batch` rows and so many tokens, on each of so many processes."""
        ...

    def buckets_of(self, rows: Tensor, batch: int) -> BatchPlan:
        """Of some rows, one or more: a plan's rows are places in `rows`."""
        ...


class PlacedRows(Protocol):
    """Ragged rows, photos, whose sizes are known before they are read: a device can be filled with them one by one."""

    @property
    def sizes(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def shown(self, rows: Tensor) -> Tensor:
        """The photo that each shows: its own, or what stands in for it. Changes when a photo turns out bad, never back."""
        ...

    def laid_out(self, pixels: Tensor, start: Tensor) -> dict[str, Tensor]:
        """What `gather` picks photos from when they begin there in `pixels`."""
        ...

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]: ...
