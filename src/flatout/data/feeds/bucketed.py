"""Batches under a budget of tokens: rows of like length, padded to the longest of their bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.feeds.contract import Feed, StepEnds
from flatout.data.feeds.resident import move
from flatout.data.offers import BatchPlan, PlannedBatch, RowsByLength
from flatout.data.order.keyed import Keys, to_device
from flatout.data.source import Batch
from flatout.data.transforms import Transform, apply


class Bucketed:
    """The plan of an epoch, and its batches: picked out on the device, or on the host where it has no room for the rows."""

    def __init__(
        self,
        source: RowsByLength,
        buckets: BatchPlan,
        device: torch.device | str,
        transforms: Sequence[Transform],
        seed: int,
        stored: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`stored`: rows that are on the device already."""
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
        """Some of the rows of a planned batch."""
        places = to_device(rows, self._where)
        batch = self._source.padded(self._stored, places, length)
        if self._where != self._device:
            batch = {name: column.to(self._device, non_blocking=True) for name, column in batch.items()}
        if not self._transforms:
            return batch
        there = to_device(rows, self._device)
        return apply(self._transforms, batch, Keys(self._seed, torch.full_like(there, epoch), there))


class BucketFeed(Feed):
    """Serves the batches of one plan after the other. Their sizes differ: `next_size` tells the next one's.

    A place is a number of samples, as in every feed. Where a batch was cut short, what was left of it comes next.
    """

    def __init__(
        self,
        source: RowsByLength,
        batch: int,
        device: torch.device | str,
        *,
        transforms: Sequence[Transform] = (),
        seed: int = 0,
        resident: bool = True,
        degraded: Sequence[str] = (),
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch must be 1 or more, got {batch}")
        self.batch = batch
        self.position = 0
        self._degraded = list(degraded)
        stored = move(source.stored(), torch.device(device)) if resident else None
        self._made = Bucketed(source, source.buckets(batch, seed), device, transforms, seed, stored)
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
        """The batch at `position`, or its first rows; the position moves on by their number."""
        epoch, rows, length = self._left()
        size = len(rows) if size is None else size
        if not 1 <= size <= len(rows):
            raise UsageError(f"next(size={size}): this batch has {len(rows)} rows; ask next_size() first")
        self.position += size
        return self._made.make(epoch, rows[:size], length)

    def shortest(self) -> Batch:
        """The batch of the shortest rows of the first epoch; the position stays."""
        planned = min(self._made.plan(0), key=lambda batch: batch.length)
        return self._made.make(0, planned.rows, planned.length)

    def worst(self) -> list[Batch]:
        """Of the first epoch the batch of the longest rows, and that of the most tokens; the position stays."""
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
        """The epoch, what is left of the batch at the position, and the length it is padded to."""
        epoch, place = divmod(self.position, self._rows)
        ends = self._ends_of(epoch)
        number = int(np.searchsorted(ends, place, side="right"))
        planned = self._made.plan(epoch)[number]
        return epoch, planned.rows[place - (int(ends[number]) - len(planned.rows)) :], planned.length

    def _ends_of(self, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if self._ends[0] != epoch:
            self._ends = epoch, np.cumsum([len(planned.rows) for planned in self._made.plan(epoch)])
        return self._ends[1]
