"""The order of samples as a pure function of (seed, epoch, layout): any stretch of it is computed without the rest.

Indices are made ahead by the 64k or more, on the device that will use them, which is never waited for. An order over windows
of blocks is made on the host and copied: what is read block by block comes from there anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.order.keyed import hash32, keyed, spread
from flatout.data.order.permutations import Permutations, floor_divide, to_device

_PIECE = 1 << 15  # small enough for the cache, and for torch not to wake threads, which stall where cores are shared
_FEW_ROWS = 4096  # a round is a table of sqrt(size) values: of short ones more are needed


class Sampler(Protocol):
    """Which row is at each position of a run; positions run on from epoch to epoch."""

    @property
    def epoch_rows(self) -> int: ...

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        """The rows at positions [start, stop), int64."""
        ...

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        """What tells two visits of one row apart, for the keys of its augmentation: the epoch, or the draw."""
        ...


class Order:
    """Every epoch visits every row once: the blocks in a new order, and the rows shuffled within a window of blocks.

    With one block, or a window that spans them all, that is a permutation of all rows.
    """

    def __init__(self, seed: int, blocks: Sequence[int], window_blocks: int | None = None) -> None:
        if not blocks or min(blocks) < 0 or sum(blocks) == 0:
            raise DataError(f"an order needs blocks with rows in them, got block sizes {list(blocks)[:8]}")
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
    """A few epochs, each a permutation of all rows. Positions count from the first of these epochs."""

    def __init__(self, seed: int, epochs: Tensor, epoch_rows: int) -> None:
        self._epoch_rows = epoch_rows
        rounds = 6 if epoch_rows < _FEW_ROWS else 4
        self._shuffle = Permutations(keyed(seed, "rows"), epochs, torch.full_like(epochs, epoch_rows), rounds)

    def rows(self, positions: Tensor) -> Tensor:
        epoch = floor_divide(positions, self._epoch_rows)
        return self._shuffle(positions - epoch * self._epoch_rows, epoch)


class _Windows:
    """The shuffled blocks of a few epochs laid end to end, cut into windows."""

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
    """Rows as they are stored, epoch after epoch."""

    def __init__(self, rows: int) -> None:
        self._epoch_rows = rows

    @property
    def epoch_rows(self) -> int:
        return self._epoch_rows

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.arange(start, stop, device=device).remainder_(self._epoch_rows)

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return floor_divide(torch.arange(start, stop, device=device), self._epoch_rows)
