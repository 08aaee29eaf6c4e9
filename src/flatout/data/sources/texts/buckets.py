"""Batches of rows of similar length, padded: as many rows in each as a budget of tokens allows.

Rows sorted by length are cut into buckets of a few batches each. An epoch shuffles the rows within each bucket (and rows of
equal padded length across buckets), cuts the buckets into batches, and shuffles the batches. So the content of batches changes
from epoch to epoch, but their number and shapes do not: a place in the run is a number, and all shapes are known before the
first step, for a compiler or a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.files.array_files import Array
from flatout.data.offers import PlannedBatch
from flatout.data.order.keyed import Order, hash32, keyed

_LEAST_MIX, _MOST_MIX, _BUCKETS = 2, 16, 64
MULTIPLE = 8  # of tokens: suits matrix units


class Buckets:
    """A plan of batches of at most `tokens` tokens each, including padding; a pure function of (seed, epoch, lengths).

    Padded lengths are multiples of `multiple`. `mix` is the number of batches in a bucket: more gives a better shuffle and more
    padding; by default 2 to 16, so that there are 64 buckets. `rows` is the most rows of a batch. `padding` is the share of
    padding among the tokens.
    """

    def __init__(
        self,
        lengths: Tensor | Array | Sequence[int],
        tokens: int,
        seed: int = 0,
        *,
        multiple: int = MULTIPLE,
        mix: int | None = None,
        rows: int | None = None,
    ) -> None:
        if tokens < 1 or multiple < 1 or (mix is not None and mix < 1) or (rows is not None and rows < 1):
            raise UsageError(f"tokens, multiple, mix and rows are 1 or more, got {tokens}, {multiple}, {mix}, {rows}")
        sizes = np.asarray(lengths, np.int64)
        check_lengths(sizes, tokens, multiple)
        self._seed = seed
        self._classes = -(-sizes // multiple)
        ranked = np.sort(self._classes)[::-1] * multiple  # the padded length of each rank is the same in every epoch
        mix = mix or min(max(int(ranked.sum()) // tokens // _BUCKETS, _LEAST_MIX), _MOST_MIX)
        self._buckets = list(_cut(ranked, tokens, mix, rows))
        self._bucket_of_rank = np.repeat(np.arange(len(self._buckets)), [bucket.rows for bucket in self._buckets])
        self.epoch_batches = sum(-(-bucket.rows // bucket.batch) for bucket in self._buckets)
        padded = sum(bucket.rows * bucket.length for bucket in self._buckets)
        self.padding = 1 - int(sizes.sum()) / padded

    @property
    def epoch_rows(self) -> int:
        return len(self._classes)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """All (rows, length) of batches, longest first."""
        found = {}
        for bucket in self._buckets:
            for count in (bucket.batch, bucket.rows % bucket.batch):
                if count and count <= bucket.rows:
                    found[count, bucket.length] = True
        return tuple(found)

    def batches(self, epoch: int) -> list[Tensor]:
        """The rows of each batch, int64, in the order of training."""
        return [planned.rows for planned in self.plan(epoch)]

    def plan(self, epoch: int) -> list[PlannedBatch]:
        """The same, with the padded length of each batch."""
        ranked = np.argsort(self._keys(-self._classes, "rank", epoch))
        rows = ranked[np.argsort(self._keys(self._bucket_of_rank, "bucket", epoch, ranked))]
        made: list[PlannedBatch] = []
        first = 0
        for bucket in self._buckets:
            here = torch.from_numpy(rows[first : first + bucket.rows])
            made += [PlannedBatch(batch, bucket.length) for batch in here.split(bucket.batch)]
            first += bucket.rows
        count = self.epoch_batches
        order = Order(keyed(self._seed, "batches"), (count,)).rows(epoch * count, (epoch + 1) * count)
        return [made[place] for place in order.tolist()]

    def _keys(self, major: Array, purpose: str, epoch: int, rows: Array | None = None) -> Array:
        """Sort keys: by `major`, then by a hash that is unique for each row."""
        numbers = np.arange(len(major)) if rows is None else rows
        hashed = hash32(torch.from_numpy(numbers), keyed(self._seed, purpose, epoch)).numpy()
        return np.asarray((major << 32) + hashed)


@dataclass(frozen=True)
class _Bucket:
    rows: int
    length: int
    batch: int


def _cut(ranked: Array, tokens: int, mix: int, most: int | None) -> Iterator[_Bucket]:
    first = 0
    while first < len(ranked):
        length = int(ranked[first])
        batch = min(tokens // length, most or tokens)
        rows = min(mix * batch, len(ranked) - first)
        yield _Bucket(rows, length, batch)
        first += rows


def check_lengths(sizes: Array, tokens: int, multiple: int) -> None:
    if sizes.ndim != 1 or not len(sizes):
        raise DataError(f"buckets need the length of each row, one or more; got an array of shape {list(sizes.shape)}")
    if int(sizes.min()) < 1:
        row = int(sizes.argmin())
        raise DataError(f"row {row} has {int(sizes[row])} tokens: every row needs 1 or more")
    row = int(sizes.argmax())
    padded = -(-int(sizes[row]) // multiple) * multiple
    if padded > tokens:
        what = f"row {row} has {int(sizes[row])} tokens, {padded} when padded to a multiple of {multiple}"
        raise DataError(f"{what}, and a batch may have {tokens}: raise tokens, or leave out or cut rows that long")
