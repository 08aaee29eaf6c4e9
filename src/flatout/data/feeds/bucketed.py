"""Batches of a limited number of tokens: rows of similar length, padded to the longest row of their bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.feeds.contract import Feed, FeedOptions, StepEnds
from flatout.data.feeds.resident import move
from flatout.data.offers import BatchPlan, PlannedBatch, RowsByLength
from flatout.data.order.keyed import Keys, to_device
from flatout.data.source import Batch, Transform, apply


class Bucketed:
    """The plan of an epoch and its batches, which are picked on the device, or on the host if the device has no room."""

    def __init__(
        self,
        source: RowsByLength,
        buckets: BatchPlan,
        device: torch.device | str,
        transforms: Sequence[Transform],
        seed: int,
        stored: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`stored`: the rows, if they are on the device."""
        self.buckets = buckets
        self._source, self._transforms, self._seed = source, tuple(transforms), seed
        self._device = torch.device(device)
        self._stored = source.stored() if stored is None else stored
        self._where = next(iter(self._stored.values())).device
        self._plan = 0, buckets.plan(0)

    def plan(self, epoch: int) -> Sequence[PlannedBatch]:
        if self._plan[0] != epoch:
            self._plan = epoch, self.buckets.plan(epoch)
        return self._plan[1]

    def make(self, epoch: int, rows: Tensor, length: int) -> Batch:
        """A batch of some of the rows of a planned batch."""
        places = to_device(rows, self._where)
        batch = self._source.padded(self._stored, places, length)
        if self._where != self._device:
            batch = {name: column.to(self._device, non_blocking=True) for name, column in batch.items()}
        if not self._transforms:
            return batch
        there = to_device(rows, self._device)
        return apply(self._transforms, batch, Keys(self._seed, torch.full_like(there, epoch), there))


class BucketFeed(Feed):
    """Serves the batches of one plan after the other. Their sizes differ: `next_size` gives the size of the next one.

    Positions are numbers of samples, as in every feed. If a batch was cut short, its other rows come next.
    """

    def __init__(
        self, source: RowsByLength, options: FeedOptions, *, resident: bool = True, degraded: Sequence[str] = ()
    ) -> None:
        self.batch = options.batch
        self.position = 0
        self._degraded = list(degraded)
        device, seed = options.device, options.seed
        stored = move(source.stored(), device) if resident else None
        self._made = Bucketed(source, source.buckets(self.batch, seed), device, options.transforms, seed, stored)
        self._rows, self._batches = self._made.buckets.epoch_rows, self._made.buckets.epoch_batches
        self._ends = -1, np.zeros(0, np.int64)

    @property
    def degraded(self) -> list[str]:
        return self._degraded

    @property
    def steps(self) -> StepEnds:
        return self

    def next_size(self, most: int) -> int:
        return min(most, len(self._left()[1]))

    def next(self, size: int | None = None) -> Batch:
        """The batch at `position`, or its first `size` rows. The position moves on by their number."""
        epoch, rows, length = self._left()
        size = len(rows) if size is None else size
        if not 1 <= size <= len(rows):
            raise UsageError(f"next(size={size}): this batch has {len(rows)} rows; call next_size() first")
        self.position += size
        return self._made.make(epoch, rows[:size], length)

    def shortest(self) -> Batch:
        """The batch of the shortest rows of the first epoch. The position stays."""
        planned = min(self._made.plan(0), key=lambda batch: batch.length)
        return self._made.make(0, planned.rows, planned.length)

    def worst(self) -> list[Batch]:
        """The batches of the first epoch with the longest rows and with the most tokens. The position stays."""
        longest = max(self._made.plan(0), key=lambda batch: (batch.length, len(batch.rows)))
        largest = max(self._made.plan(0), key=lambda batch: (batch.length * len(batch.rows), batch.length))
        return [self._made.make(0, one.rows, one.length) for one in ([longest] if longest is largest else [longest, largest])]

    def seek(self, position: int) -> None:
        self.position = position

    def close(self) -> None:
        """Nothing runs in the background here."""

    def samples_after(self, steps: int) -> int:
        epoch, batches = divmod(steps, self._batches)
        return epoch * self._rows + (int(self._ends_of(epoch)[batches - 1]) if batches else 0)

    def steps_until(self, samples: int) -> int:
        epoch, rows = divmod(samples, self._rows)
        return epoch * self._batches + (int(np.searchsorted(self._ends_of(epoch), rows)) + 1 if rows else 0)

    def _left(self) -> tuple[int, Tensor, int]:
        """The epoch, the rows left of the batch at the position, and the length that they are padded to."""
        epoch, place = divmod(self.position, self._rows)
        ends = self._ends_of(epoch)
        number = int(np.searchsorted(ends, place, side="right"))
        planned = self._made.plan(epoch)[number]
        return epoch, planned.rows[place - (int(ends[number]) - len(planned.rows)) :], planned.length

    def _ends_of(self, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if self._ends[0] != epoch:
            self._ends = epoch, np.cumsum([len(planned.rows) for planned in self._made.plan(epoch)])
        return self._ends[1]
