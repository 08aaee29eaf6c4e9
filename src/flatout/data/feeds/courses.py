"""What a loader serves, epoch after epoch: the batches of a feed, or rows of similar length with a limited number of tokens.

A course knows the batch at (epoch, number), and writes a place as numbers that hold for every process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.feeds.bucketed import Bucketed
from flatout.data.feeds.contract import Feed, FeedOptions
from flatout.data.feeds.resident import move
from flatout.data.source import Batch, Source


class Course(Protocol):
    @property
    def batches(self) -> int | None:
        """Batches in an epoch, the same number on every rank. None: the data has no end."""
        ...

    @property
    def degraded(self) -> list[str]: ...

    def get(self, epoch: int, number: int) -> Batch: ...

    def mark(self, epoch: int, number: int) -> dict[str, Any]:
        """The place before that batch, for a state."""
        ...

    def find(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """The epoch and number of a mark. UsageError if no batch here begins at that place."""
        ...

    def stats(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class FeedCourse:
    """Batches of one size, rows by number or a stream. A stream is read up to a place that it is not at."""

    def __init__(self, feed: Feed, epoch_rows: int | None, batches: int | None, world: int = 1) -> None:
        """`epoch_rows` and `batches` are those of this process. None: a stream without end."""
        self.batches = batches
        self._feed, self._batch, self._world, self._epoch_rows = feed, feed.batch, world, epoch_rows

    @property
    def degraded(self) -> list[str]:
        return self._feed.degraded

    def get(self, epoch: int, number: int) -> Batch:
        feed, position = self._feed, self._position(epoch, number)
        if feed.position != position:
            feed.seek(position)
        if self._epoch_rows is None:
            return feed.next()
        return feed.next(min(self._batch, self._epoch_rows - number * self._batch))

    def mark(self, epoch: int, number: int) -> dict[str, Any]:
        place = {"epoch": epoch, "samples": number * self._batch * self._world}
        state = self._feed.state_dict() if self._feed.position == self._position(epoch, number) else None
        return place if state is None else {**place, "stream": state}

    def find(self, state: Mapping[str, Any]) -> tuple[int, int]:
        number, rest = divmod(int(state["samples"]), self._batch * self._world)
        if rest:
            size = f"{self._batch} rows" if self._world == 1 else f"{self._batch} rows on each of {self._world} processes"
            where = f"{state['samples']} samples into epoch {state['epoch']}"
            raise UsageError(f"the state is from {where}, where no batch of {size} ends: use the batch size of the saved run")
        if state.get("stream") is not None:
            self._feed.load_state_dict(state["stream"])
        return int(state["epoch"]), number

    def stats(self) -> dict[str, Any]:
        return self._feed.stats() or {}

    def close(self) -> None:
        self._feed.release()

    def _position(self, epoch: int, number: int) -> int:
        return epoch * (self._epoch_rows or 0) + number * self._batch


class BucketCourse:
    """Batches of at most `tokens` tokens and `batch` rows on each process. Every rank pads to the same length."""

    def __init__(self, source: Source, options: FeedOptions, tokens: int, rank: int, world: int) -> None:
        if (rows := source.by_length) is None:
            raise DataError(
                "tokens= is for rows of differing lengths, such as fo.data.sequences makes; use batch alone for this data"
            )
        self._buckets = rows.buckets(options.batch, options.seed, world, tokens)
        stored = move(rows.stored(), options.device)
        self._made = Bucketed(rows, self._buckets, options.device, options.transforms, options.seed, stored)
        self.batches = self._buckets.epoch_batches
        self.degraded: list[str] = []
        self._rank, self._world = rank, world
        self._form = {"batch": options.batch * world, "tokens": tokens * world}  # the plan of an epoch depends on these

    def get(self, epoch: int, number: int) -> Batch:
        planned = self._made.plan(epoch)[number]
        return self._made.make(epoch, self._part(planned.rows), planned.length)

    def mark(self, epoch: int, number: int) -> dict[str, Any]:
        return {"epoch": epoch, "samples": number, **self._form}

    def find(self, state: Mapping[str, Any]) -> tuple[int, int]:
        for name, here in self._form.items():
            if state.get(name) != here:
                what = "rows" if name == "batch" else "tokens"
                saved = f"the state has batches of {state.get(name)} {what} over all processes, this loader has {here}"
                raise UsageError(f"{saved}: the rows of each batch depend on it, so use the saved number")
        return int(state["epoch"]), int(state["samples"])

    def stats(self) -> dict[str, Any]:
        return {"padding": self._buckets.padding, "shapes": [list(shape) for shape in self._buckets.shapes]}

    def close(self) -> None:
        """Nothing runs in the background here."""

    def _part(self, rows: Tensor) -> Tensor:
        """The rows of this rank. If the batch does not divide, its first rows are repeated."""
        if self._world == 1:
            return rows
        size = -(-len(rows) // self._world)
        places = torch.arange(self._rank * size, (self._rank + 1) * size).remainder_(len(rows))
        return rows.index_select(0, places)
