"""Keyed permutations that are evaluated at any point without the others.

Each is a Feistel network over pairs (left, right), both below side = ceil(sqrt(size)). Results that fall outside of the
size (at most 2 * side of side * side) are sent through again until they fall inside. On the host those few are; a device,
which must not be asked which they are, looks all of them up in a table of where each point outside ends. Both give the same
bits. NumPy stands in for the two operations that torch gives to several threads at any size, which stalls where cores are
shared; tables are made by one thread for the same reason.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from flatout.data.order.keyed import below, hash32, keyed, spread


class Permutations:
    """One keyed permutation of range(sizes[g]) for each group g, evaluated at many points of many groups at once."""

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
        # A round adds a random function of the right half to the left one. It has only `side` values: a table of them.
        owner = torch.from_numpy(np.arange(len(sides)).repeat(sides.numpy()))
        place = hash32(torch.arange(len(owner)) - starts[owner], keyed(key, "place"))
        of_group = hash32(spread(hash32(groups, keyed(key, "group")), rounds), keyed(key, "round"))
        functions = below(hash32(of_group.t()[:, owner] ^ place, key), sides[owner])
        functions -= sides[owner]  # so that the sign of a sum says whether it was wrapped
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
        """Where each point outside ends, and the first entry of each group. A circle of points outside never ends: it is left
        alone, since no walk that began inside can enter it."""
        sizes = self._sizes.to(torch.int64)
        surplus = self._sides.to(torch.int64) ** 2 - sizes
        first = surplus.cumsum(0) - surplus
        groups = torch.arange(len(sizes)).repeat_interleave(surplus)
        offset = sizes[groups] - first[groups]  # from an entry of the table to its point
        points = torch.arange(len(groups)) + offset
        ends = self._once(points.to(self._sizes.dtype), groups).to(torch.int64)
        walking, before = torch.nonzero(ends >= sizes[groups]).flatten(), -1
        while len(walking) != before:  # each time, all that walk go on to where the one that they have met has got to
            before = len(walking)
            ends[walking] = ends[ends[walking] - offset[walking]]
            walking = walking[ends[walking] >= sizes[groups[walking]]]
        ends = torch.cat([ends, torch.zeros(1, dtype=torch.int64)])  # the first entry of a group that has none
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
    """Of a few thousand values. The others, once woken, turn on every core for a while, beside a loop that needs one."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def floor_divide(values: Tensor, by: int | Tensor) -> Tensor:
    """Exact for values from 0 to 2**52, and on a host faster than integer division, which its cores do one at a time."""
    if values.device.type == "cpu":
        return values.to(torch.float64).div_(by).to(values.dtype)
    # A GPU multiplies by the reciprocal of a number: 49 / 49 is 0.9999 there, and 0 when it is cut to an integer
    return torch.div(values, by, rounding_mode="floor")


def to_device(indices: Tensor, device: torch.device | str) -> Tensor:
    """Without waiting: pinned memory lets the copy run on behind the host."""
    target = torch.device(device)
    if target.type == "cpu":
        return indices
    return indices.pin_memory().to(target, non_blocking=True)
