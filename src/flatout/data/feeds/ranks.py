"""Which part of every batch a process gets when several train together.

The batches of all processes together are the batches that one process would see. Both shares are orders: pure functions of the
position, so a run can resume on more or fewer processes.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.order.keyed import Sampler, to_device
from flatout.data.source import pick_rows
from flatout.world.world import World

Positions = np.ndarray[Any, np.dtype[np.int64]]

_GAP_ROWS = 10_000  # computing this many rows of an order takes as long as one more call
_GAP_ROWS_ON_A_DEVICE = 1 << 20


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """The arguments; else those of the process group; else torchrun's variables; else one process."""
    if (rank is None) != (world is None):
        raise UsageError(f"give rank and world together, got rank={rank}, world={world}")
    if rank is None or world is None:
        rank, world = _of_this_process()
    if world < 1 or not 0 <= rank < world:
        raise UsageError(f"rank must be from 0 to world - 1, got rank={rank}, world={world}")
    return rank, world


def _of_this_process() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    values = []
    for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1")):
        text = os.environ.get(name, alone)
        if not text.strip().isdigit():
            raise UsageError(f"the environment variable {name} must be a whole number, got {text!r}: give rank= and world=")
        values.append(int(text))
    return values[0], values[1]


class RankOrder(ABC):
    """The part of an order that one rank sees, which is an order, too."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    @property
    @abstractmethod
    def epoch_rows(self) -> int: ...

    @abstractmethod
    def places(self, start: int, stop: int) -> Positions:
        """Positions [start, stop) of this rank as positions in the order of all ranks."""

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return self._picked(self._sampler.rows, start, stop, torch.device(device))

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return self._picked(self._sampler.visits, start, stop, torch.device(device))

    def _picked(self, read: Callable[..., Tensor], start: int, stop: int, device: torch.device) -> Tensor:
        """Computes the rows of the other ranks in between as well, where that is faster than one more call."""
        places = self.places(start, stop)
        gap = _GAP_ROWS if device.type == "cpu" else _GAP_ROWS_ON_A_DEVICE
        found = [torch.empty(0, dtype=torch.int64, device=device)]
        for near in np.split(places, np.flatnonzero(np.abs(np.diff(places)) > gap) + 1) if len(places) else ():
            low, high = int(near.min()), int(near.max()) + 1
            found.append(pick_rows(read(low, high, device), to_device(torch.from_numpy(near - low), device)))
        return torch.cat(found) if len(found) != 2 else found[1]


class EpochShare(RankOrder):
    """Of each global batch of an epoch, rank r takes the r-th of equal parts.

    If the end of an epoch does not divide, it is filled up with the epoch's first rows. Every rank then has the same number
    of batches of the same sizes, and no rank waits for others.
    """

    def __init__(self, sampler: Sampler, batch: int, rank: int, world: int, drop_last: bool) -> None:
        super().__init__(sampler)
        self._batch, self._rank = batch, rank
        self._all_rows = sampler.epoch_rows
        self._global_batch = batch * world
        self._whole, rest = divmod(self._all_rows, self._global_batch)  # whole global batches, and the rows after them
        self._last = 0 if drop_last else -(-rest // world)  # this rank's rows of the short last batch
        if self._whole == 0 and self._last == 0:
            needed = f"{batch} rows" if world == 1 else f"{batch} rows on each of {world} processes"
            raise UsageError(f"drop_last leaves no batch: there are {self._all_rows} rows, and a batch takes {needed}")

    @property
    def epoch_rows(self) -> int:
        """Rows of this rank in an epoch."""
        return self._whole * self._batch + self._last

    @property
    def batches(self) -> int:
        """Batches in an epoch."""
        return self._whole + (self._last > 0)

    def places(self, start: int, stop: int) -> Positions:
        (first, skip), (last, _) = self._batch_of(start), self._batch_of(stop - 1)
        numbers = np.arange(first, last + 1)
        epochs = numbers // self.batches
        numbers -= epochs * self.batches
        sizes = np.where(numbers < self._whole, self._batch, self._last)
        begins = epochs * self._all_rows + numbers * self._global_batch + sizes * self._rank
        places = _laid_out(begins, sizes)
        if self._whole * self._global_batch + (self._rank + 1) * self._last > self._all_rows:  # filled with first rows
            before = np.repeat(epochs * self._all_rows, sizes)
            places = (places - before) % self._all_rows + before
        return places[skip : skip + stop - start]

    def _batch_of(self, position: int) -> tuple[int, int]:
        """The batch at a position of this rank, counted from the first epoch, and how many of its rows come before."""
        epoch, within = divmod(position, self.epoch_rows)
        number, skip = divmod(within, self._batch)
        return epoch * self.batches + number, skip


class RunShare(RankOrder):
    """This process's rows of every batch of a run of `total` samples, whose last batch may be short."""

    def __init__(self, sampler: Sampler, batch: int, world: World, total: int | None) -> None:
        super().__init__(sampler)
        if batch < world.data_size:
            raise UsageError(
                f"batch {batch} can't be shared by {world.data_size} processes: start fewer processes or set a larger batch"
            )
        self._batch = batch
        self._low, high = world.share(batch)
        self.own = high - self._low  # rows of each whole batch
        self._whole = -1 if total is None else total // batch  # batches before the short one
        self._short = (0, 0) if total is None else world.share(total % batch)

    @property
    def epoch_rows(self) -> int:
        return self._sampler.epoch_rows

    def place(self, position: int) -> int:
        """The position of this process when the run is at `position`, which counts the samples of all processes."""
        return position // self._batch * self.own

    def places(self, start: int, stop: int) -> Positions:
        """`start` is the start of a batch. After the end of the run there are more places, which nobody uses."""
        first, skip = divmod(start, self.own)
        numbers = np.arange(first, stop // self.own + 2)
        begins, sizes = numbers * self._batch + self._low, np.full(len(numbers), self.own)
        if 0 <= (short := self._whole - first) < len(numbers):  # may have more rows than `own`
            begins[short] = self._whole * self._batch + self._short[0]
            sizes[short] = self._short[1] - self._short[0]
        return _laid_out(begins, sizes)[skip : skip + stop - start]


def _laid_out(begins: Positions, sizes: Positions) -> Positions:
    """The places of stretches that begin there and have these sizes, one after the other."""
    places: Positions = np.repeat(begins - (sizes.cumsum() - sizes), sizes)
    places += np.arange(len(places))
    return places
