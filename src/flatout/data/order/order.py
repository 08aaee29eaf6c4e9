"""The order of samples as a pure function of (seed, epoch, layout). Any range of it is computed without the rest.

Row numbers are computed ahead, 64k or more at a time, on the device that uses them, and nothing waits for the device. An order
over windows of blocks is computed on the host and copied, because data that is read block by block is on the host anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.order.keyed import Permutations, floor_divide, hash32, keyed, spread, to_device

BLOCK_ROWS = 1 << 16
BLOCK_STEPS = 256  # on a device, computing rows costs a fixed number of kernel launches: compute more at a time
_PIECE = 1 << 15  # fits the CPU cache, and torch wakes no threads, which would stall on shared cores
_FEW_ROWS = 4096  # a round is a table of sqrt(size) values: short tables need more rounds


class Sampler(Protocol):
    """Which row is at each position of a run. Positions count on from epoch to epoch."""

    @property
    def epoch_rows(self) -> int: ...

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        """The rows at positions [start, stop), int64."""
        ...

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        """A number that differs between visits of one row (the epoch or the draw), for the keys of its augmentation."""
        ...


class Order:
    """Every epoch visits every row once: blocks in a new order, rows shuffled within a window of blocks.

    With one block, or a window over all blocks, this is a permutation of all rows.
    """

    def __init__(self, seed: int, blocks: Sequence[int], window_blocks: int | None = None) -> None:
        if not blocks or min(blocks) < 0 or sum(blocks) == 0:
            raise DataError(f"an order needs blocks that have rows, got block sizes {list(blocks)[:8]}")
        if window_blocks is not None and window_blocks < 1:
            raise DataError(f"window_blocks must be 1 or more, got {window_blocks}")
        self._seed = seed
        self._sizes = torch.tensor([rows for rows in blocks if rows], dtype=torch.int64)
        self._first_rows = self._sizes.cumsum(0) - self._sizes
        self._window_blocks = min(window_blocks or len(self._sizes), len(self._sizes))
        self._epoch_rows = int(self._sizes.sum())
        self._recent: tuple[tuple[int, int], _Whole | _Windows] | None = None

    @property
    def epoch_rows(self) -> int:
        return self._epoch_rows

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        if stop <= start:
            return torch.empty(0, dtype=torch.int64, device=device)
        n = self._epoch_rows
        first, last = start // n, (stop - 1) // n + 1
        recent = self._recent
        if recent is None or recent[0] != (first, last):
            self._recent = recent = (first, last), self._lay_out(torch.arange(first, last))
        if torch.device(device).type != "cpu" and isinstance(recent[1], _Whole):
            return recent[1].rows(torch.arange(start - first * n, stop - first * n, device=device))
        found = torch.empty(stop - start, dtype=torch.int64)
        for piece in range(start, stop, _PIECE):
            positions = torch.arange(piece - first * n, min(piece + _PIECE, stop) - first * n)
            found[piece - start : piece - start + _PIECE] = recent[1].rows(positions)
        return to_device(found, device)

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return floor_divide(torch.arange(start, stop, device=device), self._epoch_rows)

    def _lay_out(self, epochs: Tensor) -> _Whole | _Windows:
        if self._window_blocks == len(self._sizes):
            return _Whole(self._seed, epochs, self._epoch_rows)
        return _Windows(self._seed, epochs, self._sizes, self._first_rows, self._window_blocks)


class _Whole:
    """A few epochs, each a permutation of all rows. Positions count from the first epoch given."""

    def __init__(self, seed: int, epochs: Tensor, epoch_rows: int) -> None:
        self._epoch_rows = epoch_rows
        rounds = 6 if epoch_rows < _FEW_ROWS else 4
        self._shuffle = Permutations(keyed(seed, "rows"), epochs, torch.full_like(epochs, epoch_rows), rounds)

    def rows(self, positions: Tensor) -> Tensor:
        epoch = floor_divide(positions, self._epoch_rows)
        return self._shuffle(positions - epoch * self._epoch_rows, epoch)


class _Windows:
    """The shuffled blocks of a few epochs, one after the other, cut into windows."""

    def __init__(self, seed: int, epochs: Tensor, sizes: Tensor, first_rows: Tensor, window_blocks: int) -> None:
        count, blocks = len(epochs), len(sizes)
        shuffle = Permutations(keyed(seed, "blocks"), epochs, torch.full_like(epochs, blocks), rounds=6)
        order = shuffle(torch.arange(blocks).repeat(count), torch.arange(count).repeat_interleave(blocks))
        self._first_rows = first_rows[order]
        ends = sizes[order].cumsum(0)
        self._block_starts = ends - sizes[order]
        self._window_starts = self._block_starts.view(count, blocks)[:, ::window_blocks].flatten().contiguous()
        window_sizes = torch.cat([self._window_starts, ends[-1:]]).diff()
        windows = math.ceil(blocks / window_blocks)
        numbers = spread(hash32(epochs, keyed(seed, "windows")), windows).flatten()
        self._within = Permutations(keyed(seed, "rows"), numbers, window_sizes, rounds=6)

    def rows(self, positions: Tensor) -> Tensor:
        window = torch.searchsorted(self._window_starts, positions, right=True).sub_(1)
        start = self._window_starts[window]
        place = self._within(positions - start, window).add_(start)
        block = torch.searchsorted(self._block_starts, place, right=True).sub_(1)
        return place.sub_(self._block_starts[block]).add_(self._first_rows[block])


class Sequential:
    """Rows in stored order, epoch after epoch."""

    def __init__(self, rows: int) -> None:
        self._epoch_rows = rows

    @property
    def epoch_rows(self) -> int:
        return self._epoch_rows

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.arange(start, stop, device=device).remainder_(self._epoch_rows)

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return floor_divide(torch.arange(start, stop, device=device), self._epoch_rows)


def block_rows(batch: int, device: torch.device) -> int:
    """How many rows to compute at a time."""
    steps = 1 if device.type == "cpu" else BLOCK_STEPS
    return max(BLOCK_ROWS, steps * batch)


class Lookahead:
    """Computes the rows of coming positions in blocks and returns slices of them."""

    def __init__(self, sampler: Sampler, device: torch.device) -> None:
        self._sampler = sampler
        self._device = device
        self._start = self._stop = 0
        self._rows = self._visits = torch.empty(0, dtype=torch.int64, device=device)

    def rows(self, start: int, stop: int) -> Tensor:
        if start < self._start or stop > self._stop:
            self._fill(start, start + block_rows(stop - start, self._device))
        return self._rows[start - self._start : stop - self._start]

    def visits(self, start: int, stop: int) -> Tensor:
        """Of the positions last passed to `rows`. Computed on first use, because only transforms need them."""
        if len(self._visits) != len(self._rows):
            self._visits = self._sampler.visits(self._start, self._stop, self._device)
        return self._visits[start - self._start : stop - self._start]

    def _fill(self, start: int, stop: int) -> None:
        self._start, self._stop = start, stop
        self._rows = self._sampler.rows(start, stop, self._device)
        self._visits = self._rows[:0]
