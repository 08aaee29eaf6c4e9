"""Everything random as a pure function of a seed, equal on every device: hashes, random numbers, and the order of samples.

Values live in int64 tensors and stay below 2**32. The multipliers are below 2**31, so no product overflows.

Any range of an order is computed without the rest. Row numbers are computed ahead, 64k or more at a time, on the device that
uses them, and nothing waits for the device. An order over windows of blocks is computed on the host and copied, because data
that is read block by block is on the host anyway.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError

BLOCK_ROWS = 1 << 16
BLOCK_STEPS = 256  # on a device, computing rows costs a fixed number of kernel launches: compute more at a time
_PIECE = 1 << 15  # fits the CPU cache, and torch wakes no threads, which would stall on shared cores
_FEW_ROWS = 4096  # a round is a table of sqrt(size) values: short tables need more rounds
_LOW_32 = 0xFFFFFFFF
_GOLDEN = 0x1E3779B1  # odd, so multiples visit all 32-bit values before they repeat


@lru_cache(maxsize=4096)
def keyed(seed: int, *parts: str | int) -> int:
    """A 64-bit key for one purpose. Different parts give different keys."""
    return int.from_bytes(hashlib.blake2b(repr((seed, parts)).encode(), digest_size=8).digest(), "little")


def hash32(values: Tensor, key: int) -> Tensor:
    """Map each value of a non-negative int64 tensor to [0, 2**32). A bijection on 32-bit values that looks random."""
    mixed = (values >> 32).bitwise_xor_(values).bitwise_xor_(key & _LOW_32).bitwise_and_(_LOW_32)
    mixed.bitwise_xor_(mixed >> 16).mul_(0x7FEB352D).bitwise_and_(_LOW_32)
    mixed.bitwise_xor_(mixed >> 15).bitwise_xor_(key >> 32).mul_(0x31848BAB).bitwise_and_(_LOW_32)
    mixed.bitwise_xor_(mixed >> 14).mul_(0x2C1B3C6D).bitwise_and_(_LOW_32)
    return mixed.bitwise_xor_(mixed >> 16)


def below(hashed: Tensor, limit: int | Tensor) -> Tensor:
    """Hashed values to integers in [0, limit), limit below 2**31. Multiplies, because a remainder costs a division."""
    return (hashed * limit) >> 32


def spread(hashed: Tensor, count: int) -> Tensor:
    """[B] -> [B, count]: `count` distinct inputs for the next hash, for each value."""
    steps = torch.arange(count, device=hashed.device).mul_(_GOLDEN)
    return (hashed.unsqueeze(-1) + steps).bitwise_and_(_LOW_32)


class Keys:
    """Random numbers for the samples of one batch, a pure function of (seed, visit, row).

    The visit of a row is the epoch, so a sample gets the same numbers for every batch size and place in the batch.
    """

    def __init__(self, seed: int, visits: Tensor, rows: Tensor) -> None:
        self._seed = seed
        self._visits = visits
        self._rows = rows
        self._samples: Tensor | None = None

    def uniform(self, stream: str, count: int = 1) -> Tensor:
        """float32 [B, count] in [0, 1), from 24 bits: the conversion is exact and never gives 1.0."""
        return (self._hashed(stream, count) >> 8).to(torch.float32).mul_(2.0**-24)

    def integers(self, stream: str, low: int, high: int) -> Tensor:
        """int64 [B] in [low, high)."""
        return below(self._hashed(stream, 1).squeeze(1), high - low).add_(low)

    def _hashed(self, stream: str, count: int) -> Tensor:
        if self._samples is None:
            visits = hash32(self._visits, keyed(self._seed, "visit"))
            self._samples = hash32(self._rows, keyed(self._seed, "row")).bitwise_xor_(visits)
        return hash32(spread(self._samples, count), keyed(self._seed, "stream", stream))


class Permutations:
    """One keyed permutation of range(sizes[g]) for each group g. Any point is computed without the others.

    Each is a Feistel network over pairs (left, right), both below side = ceil(sqrt(size)). A result outside of the size
    (at most 2 * side of side * side points) goes through the network again until it falls inside. The host repeats only those
    few points. On a device, finding them would mean waiting for it, so all points go through a table of where each point
    outside ends. Both give the same bits. NumPy does the two operations that torch runs on several threads at any size, and
    one thread makes the tables, because waking threads stalls on machines with shared cores.
    """

    def __init__(self, key: int, groups: Tensor, sizes: Tensor, rounds: int) -> None:
        with _one_thread():
            self._make_tables(key, groups, sizes, rounds)
        self._ends, self._first_ends = torch.empty(0), torch.empty(0)
        self._moved: Permutations | None = None

    def _make_tables(self, key: int, groups: Tensor, sizes: Tensor, rounds: int) -> None:
        sides = sizes.to(torch.float64).sqrt_().ceil_().to(torch.int64)
        starts = sides.cumsum(0) - sides
        largest = int(sides.max())
        work = torch.int32 if max(largest * largest, int(sides.sum())) < 1 << 31 else torch.int64
        # A round adds a random function of the right half to the left half. The function has `side` values: make a table.
        owner = torch.from_numpy(np.arange(len(sides)).repeat(sides.numpy()))
        place = hash32(torch.arange(len(owner)) - starts[owner], keyed(key, "place"))
        of_group = hash32(spread(hash32(groups, keyed(key, "group")), rounds), keyed(key, "round"))
        functions = below(hash32(of_group.t()[:, owner] ^ place, key), sides[owner])
        functions -= sides[owner]  # the sign of a sum then tells whether it wrapped
        self._rounds = functions.to(work).unbind()
        self._alike = (int(sizes[0]), int(sides[0])) if bool((sizes == sizes[0]).all()) else None
        self._sizes, self._sides, self._starts = sizes.to(work), sides.to(work), starts.to(work)

    def __call__(self, points: Tensor, groups: Tensor) -> Tensor:
        if points.device != self._sizes.device:
            return self._on(points.device)._without_looking(points, groups)
        mixed = self._once(points.to(self._sizes.dtype), groups)
        outside = torch.from_numpy(np.flatnonzero((mixed >= self._size_of(groups)).numpy()))
        while len(outside):
            groups_outside = groups[outside]
            again = self._once(mixed[outside], groups_outside)
            mixed[outside] = again
            outside = outside[again >= self._size_of(groups_outside)]
        return mixed.to(torch.int64)

    def _without_looking(self, points: Tensor, groups: Tensor) -> Tensor:
        mixed = self._once(points.to(self._sizes.dtype), groups)
        beyond = mixed - self._size_of(groups)
        entry = beyond.clamp(min=0).add_(self._first_ends.index_select(0, groups))
        return torch.where(beyond >= 0, self._ends.index_select(0, entry), mixed).to(torch.int64)

    def _on(self, device: torch.device) -> Permutations:
        if self._moved is None or self._moved._sizes.device != device:
            moved = copy.copy(self)
            with _one_thread():
                ends, first = self._walks_end()
                rounds = torch.stack(self._rounds)
            moved._rounds = to_device(rounds, device).unbind()
            moved._ends, moved._first_ends = to_device(ends, device), to_device(first, device)
            moved._sizes, moved._sides, moved._starts = (
                to_device(tensor, device) for tensor in (self._sizes, self._sides, self._starts)
            )
            self._moved = moved
        return self._moved

    def _walks_end(self) -> tuple[Tensor, Tensor]:
        """Where each point outside ends, and the first table entry of each group.

        Points outside can form a cycle that never ends. No walk that began inside enters one, so cycles are left as they are.
        """
        sizes = self._sizes.to(torch.int64)
        surplus = self._sides.to(torch.int64) ** 2 - sizes
        first = surplus.cumsum(0) - surplus
        groups = torch.arange(len(sizes)).repeat_interleave(surplus)
        offset = sizes[groups] - first[groups]  # from a table entry to its point
        points = torch.arange(len(groups)) + offset
        ends = self._once(points.to(self._sizes.dtype), groups).to(torch.int64)
        walking, before = torch.nonzero(ends >= sizes[groups]).flatten(), -1
        while len(walking) != before:  # pointer doubling: jump to where the point reached has got to
            before = len(walking)
            ends[walking] = ends[ends[walking] - offset[walking]]
            walking = walking[ends[walking] >= sizes[groups[walking]]]
        ends = torch.cat([ends, torch.zeros(1, dtype=torch.int64)])  # so that a group without points outside has a first entry
        return ends.to(self._sizes.dtype), first.to(self._sizes.dtype)

    def _once(self, points: Tensor, groups: Tensor) -> Tensor:
        side = self._alike[1] if self._alike else self._sides.index_select(0, groups)
        starts = self._starts.index_select(0, groups)
        left = floor_divide(points, side)
        right = points - left * side
        for function in self._rounds:
            left.add_(function.index_select(0, right + starts))
            left.add_((left >> 31).bitwise_and_(side))
            left, right = right, left
        return left.mul_(side).add_(right)

    def _size_of(self, groups: Tensor) -> int | Tensor:
        return self._alike[0] if self._alike else self._sizes.index_select(0, groups)


@contextmanager
def _one_thread() -> Iterator[None]:
    """For a few thousand values. More threads, once woken, spin on every core for a while and slow down the training loop."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def floor_divide(values: Tensor, by: int | Tensor) -> Tensor:
    """Exact for values from 0 to 2**52. On a CPU faster than integer division, which is not vectorised."""
    if values.device.type == "cpu":
        return values.to(torch.float64).div_(by).to(values.dtype)
    # A GPU multiplies by the reciprocal: 49 / 49 gives 0.9999 there, which truncates to 0
    return torch.div(values, by, rounding_mode="floor")


def to_device(indices: Tensor, device: torch.device | str) -> Tensor:
    """Copy without waiting: pinned memory makes the copy asynchronous."""
    target = torch.device(device)
    if target.type == "cpu":
        return indices
    return indices.pin_memory().to(target, non_blocking=True)


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
