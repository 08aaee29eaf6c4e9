"""Which part of every batch a process gets, when several train together.

The batches of all processes together are the batches that one process would see: of each global batch, rank r takes the r-th
of equal parts. Where the end of an epoch does not divide, it is filled up with the epoch's first rows, so that every process
has as many batches of the same sizes and nobody waits for the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.order.keyed import floor_divide
from flatout.data.order.order import Sampler

_GAP_ROWS = 10_000  # making this many rows of an order takes as long as asking for some more of them once
_GAP_ROWS_ON_A_DEVICE = 1 << 20
_AT_ONCE = 1 << 21


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """As given; else those of the process group; else those in torchrun's variables; else one process."""
    if (rank is None) != (world is None):
        raise UsageError(f"rank and world come together, got rank={rank}, world={world}")
    if rank is None or world is None:
        rank, world = _of_this_process()
    if world < 1 or not 0 <= rank < world:
        raise UsageError(f"rank is from 0 to world - 1, got rank={rank}, world={world}")
    return rank, world


def _of_this_process() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    values = []
    for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1")):
        text = os.environ.get(name, alone)
        if not text.strip().isdigit():
            raise UsageError(f"the environment variable {name} is to be a whole number, got {text!r}: give rank= and world=")
        values.append(int(text))
    return values[0], values[1]


class Share:
    """The part of an order that one rank sees, as an order of its own: a pure function of position, as every other."""

    def __init__(self, sampler: Sampler, batch: int, rank: int, world: int, drop_last: bool) -> None:
        self._sampler, self._batch, self._rank, self._world = sampler, batch, rank, world
        self._all_rows = sampler.epoch_rows
        self._global_batch = batch * world
        self._whole, rest = divmod(self._all_rows, self._global_batch)  # whole global batches, and the rows after them
        self._last = 0 if drop_last else -(-rest // world)  # this rank's rows of the last, short one
        if self._whole == 0 and self._last == 0:
            needed = f"{batch} rows" if world == 1 else f"{batch} rows on {world} processes"
            raise UsageError(f"drop_last leaves no batch: there are {self._all_rows} rows, and a batch takes {needed}")

    @property
    def epoch_rows(self) -> int:
        """Of this rank."""
        return self._whole * self._batch + self._last

    @property
    def batches(self) -> int:
        """In an epoch."""
        return self._whole + (self._last > 0)

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return self._collect(self._sampler.rows, start, stop, torch.device(device))

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return self._collect(self._sampler.visits, start, stop, torch.device(device))

    def _collect(self, read: Callable[..., Tensor], start: int, stop: int, device: torch.device) -> Tensor:
        first, last = start // self.epoch_rows, -(-stop // self.epoch_rows)
        whole_epochs = (last - first) * self._all_rows
        if whole_epochs <= min(_AT_ONCE, 2 * (stop - start) * self._world):  # short epochs: all of them
            return read(first * self._all_rows, last * self._all_rows, device).index_select(
                0, self._places(start, stop, device)
            )
        return collect_stretches(read, self._stretches(start, stop), device)

    def _places(self, start: int, stop: int, device: torch.device) -> Tensor:
        """Of positions [start, stop) of this rank, among those of all, from the start of the first of their epochs."""
        positions = torch.arange(start, stop, device=device).sub_(start // self.epoch_rows * self.epoch_rows)
        epoch = floor_divide(positions, self.epoch_rows)
        within = positions.sub_(epoch * self.epoch_rows)
        number = floor_divide(within, self._batch).clamp_(max=self._whole)
        size = torch.where(number < self._whole, self._batch, self._last)
        place = within.sub_(number * self._batch).add_(number * self._global_batch).add_(size * self._rank)
        return place.remainder_(self._all_rows).add_(epoch * self._all_rows)

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Positions [start, stop) of this rank as stretches of positions of all."""
        while start < stop:
            epoch, within = divmod(start, self.epoch_rows)
            number = within // self._batch
            size = self._batch if number < self._whole else self._last
            done = within - number * self._batch
            count = min(size - done, stop - start)
            place = number * self._global_batch + self._rank * size + done
            for begin, end in self._wrapped(place, place + count):
                yield epoch * self._all_rows + begin, epoch * self._all_rows + end
            start += count

    def _wrapped(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        rows = self._all_rows
        while begin < end:
            place = begin % rows
            count = min(end - begin, rows - place)
            yield place, place + count
            begin += count


def gap_rows(device: torch.device) -> int:
    """Up to so many rows in between, one longer stretch is made faster than two."""
    return _GAP_ROWS if device.type == "cpu" else _GAP_ROWS_ON_A_DEVICE


def collect_stretches(read: Callable[..., Tensor], stretches: Iterable[tuple[int, int]], device: torch.device) -> Tensor:
    """Stretches that lie near each other are made in one go: what is made in between and not used costs less."""
    gap = gap_rows(device)
    parts = [torch.empty(0, dtype=torch.int64, device=device)]
    near: list[tuple[int, int]] = []
    low = high = 0

    def make() -> None:
        if near:
            made = read(low, high, device)
            parts.extend(made[begin - low : end - low] for begin, end in near)
            near.clear()

    for begin, end in stretches:
        if not near or begin < low or begin > high + gap:
            make()
            low = high = begin
        near.append((begin, end))
        high = max(high, end)
    make()
    return torch.cat(parts)
