"""What a loader serves epoch after epoch: rows by number, rows of like length under a budget of tokens, or a stream.

A course knows the batch at (epoch, number) and says what a place in it is, in numbers that hold for every process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.feeds.bucketed import Bucketed
from flatout.data.feeds.contract import Feed
from flatout.data.feeds.ranks import Share
from flatout.data.feeds.resident import move
from flatout.data.offers import RowsByLength
from flatout.data.source import Batch, Source
from flatout.data.transforms import Transform


class Course(Protocol):
    @property
    def batches(self) -> int | None:
        """Of an epoch, as many on every rank. None: it has no end."""
        ...

    @property
    def degraded(self) -> list[str]: ...

    def get(self, epoch: int, number: int) -> Batch: ...

    def mark(self, epoch: int, number: int) -> dict[str, Any]:
        """The place before that batch, for a state."""
        ...

    def find(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """The place that a mark stands for; UsageError if there is none such here."""
        ...

    def stats(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class RowCourse:
    def __init__(self, feed: Feed, share: Share, batch: int, world: int) -> None:
        self.batches = share.batches
        self._feed, self._batch, self._world = feed, batch, world
        self._epoch_rows = share.epoch_rows
        self._last_size = share.epoch_rows - (share.batches - 1) * batch

    @property
    def degraded(self) -> list[str]:
        return self._feed.degraded

    def get(self, epoch: int, number: int) -> Batch:
        feed, position = self._feed, epoch * self._epoch_rows + number * self._batch
        if feed.position != position:
            feed.seek(position)
        return feed.next(self._batch if number + 1 < self.batches else self._last_size)

    def mark(self, epoch: int, number: int) -> dict[str, Any]:
        return {"epoch": epoch, "samples": number * self._batch * self._world}

    def find(self, state: Mapping[str, Any]) -> tuple[int, int]:
        number, rest = divmod(int(state["samples"]), self._batch * self._world)
        if rest:
            size = f"{self._batch} rows" if self._world == 1 else f"{self._batch} rows on each of {self._world} processes"
            where = f"{state['samples']} samples into epoch {state['epoch']}"
            raise UsageError(f"the state is from {where}, where no batch of {size} ends: take the batch size it was saved with")
        return int(state["epoch"]), number

    def stats(self) -> dict[str, Any]:
        return self._feed.stats() or {}

    def close(self) -> None:
        self._feed.close()


class BucketCourse:
    """Batches of at most `tokens` tokens on each process, and at most `batch` rows. Every rank pads to the same length."""

    def __init__(
        self,
        source: RowsByLength,
        batch: int,
        tokens: int,
        device: torch.device,
        transforms: Sequence[Transform],
        seed: int,
        rank: int,
        world: int,
    ) -> None:
        buckets, stored = source.buckets(batch, seed, world, tokens), move(source.stored(), device)
        self._made = Bucketed(source, buckets, device, transforms, seed, stored)
        self._buckets = self._made.buckets
        self.batches = self._buckets.epoch_batches
        self.degraded: list[str] = []
        self._rank, self._world = rank, world
        self._form = {"batch": batch * world, "tokens": tokens * world}  # what the plan of an epoch follows from

    def get(self, epoch: int, number: int) -> Batch:
        planned = self._made.plan(epoch)[number]
        return self._made.make(epoch, self._part(planned.rows), planned.length)

    def mark(self, epoch: int, number: int) -> dict[str, Any]:
        return {"epoch": epoch, "samples": number, **self._form}

    def find(self, state: Mapping[str, Any]) -> tuple[int, int]:
        for name, here in self._form.items():
            if state.get(name) != here:
                what = "rows" if name == "batch" else "tokens"
                saved = f"the state is of batches of {state.get(name)} {what} over all processes, and here they have {here}"
                raise UsageError(f"{saved}: which rows are in which batch follows from it")
        return int(state["epoch"]), int(state["samples"])

    def stats(self) -> dict[str, Any]:
        return {"padding": self._buckets.padding, "shapes": [list(shape) for shape in self._buckets.shapes]}

    def close(self) -> None:
        """Nothing runs in the background here."""

    def _part(self, rows: Tensor) -> Tensor:
        """This rank's; where they don't divide, the batch's first rows come again."""
        if self._world == 1:
            return rows
        size = -(-len(rows) // self._world)
        places = torch.arange(self._rank * size, (self._rank + 1) * size).remainder_(len(rows))
        return rows.index_select(0, places)


class StreamCourse:
    """An iterable in its own order; a place that it does not stand at already is reached by reading up to there."""

    def __init__(self, feed: Feed, length: int | None, batch: int, drop_last: bool) -> None:
        self._feed, self._length, self._batch = feed, length, batch
        self.batches = None
        if length is not None:
            self.batches = length // batch if drop_last else -(-length // batch)

    @property
    def degraded(self) -> list[str]:
        return self._feed.degraded

    def get(self, epoch: int, number: int) -> Batch:
        position = self._position(epoch, number)
        if self._feed.position != position:
            self._feed.seek(position)
        size = self._batch if self._length is None else min(self._batch, self._length - number * self._batch)
        return self._feed.next(size)

    def mark(self, epoch: int, number: int) -> dict[str, Any]:
        stands_there = self._feed.position == self._position(epoch, number)
        stream = self._feed.state_dict() if stands_there else None
        return {"epoch": epoch, "samples": number * self._batch, "stream": stream}

    def find(self, state: Mapping[str, Any]) -> tuple[int, int]:
        number, rest = divmod(int(state["samples"]), self._batch)
        if rest:
            raise UsageError(f"the state is from {state['samples']} samples on, where no batch of {self._batch} ends")
        if state.get("stream") is not None:
            self._feed.load_state_dict(state["stream"])
        return int(state["epoch"]), number

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._feed.close()

    def _position(self, epoch: int, number: int) -> int:
        return epoch * (self._length or 0) + number * self._batch


def rows_by_length(source: Source) -> RowsByLength:
    if source.by_length is not None:
        return source.by_length
    raise DataError("tokens= is for rows of differing lengths, as fo.data.sequences makes them; here batch alone will do")
