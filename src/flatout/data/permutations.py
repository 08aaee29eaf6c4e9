"""Keyed permutations that are evaluated at any point without the others.

Each is a Feistel network over pairs (left, right), both below side = ceil(sqrt(size)). Results that fall outside of the
size (at most 2 * side of side * side) are sent through again until they fall inside. On the host only those few are; on a
device, which must not be waited for, all are sent through as often as the longest of these walks needs, a number that is
known from the few points outside. Both give the same bits. NumPy stands in for the two operations that torch gives to
several threads at any size, which stalls where cores are shared.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from flatout.data.keyed import below, hash32, keyed, spread


class Permutations:
    """One keyed permutation of range(sizes[g]) for each group g, evaluated at many points of many groups at once."""

    def __init__(self, key: int, groups: Tensor, sizes: Tensor, rounds: int) -> None:
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
        self._walks = 0
        self._moved: Permutations | None = None

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
        for _ in range(self._walks):
            mixed = torch.where(mixed >= self._size_of(groups), self._once(mixed, groups), mixed)
        return mixed.to(torch.int64)

    def _on(self, device: torch.device) -> Permutations:
        if self._moved is None or self._moved._sizes.device != device:
            moved = copy.copy(self)
            moved._walks = self._longest_walk()
            rounds = torch.stack(self._rounds)
            moved._rounds = to_device(rounds, device).unbind()
            moved._sizes, moved._sides, moved._starts = (
                to_device(tensor, device) for tensor in (self._sizes, self._sides, self._starts)
            )
            self._moved = moved
        return self._moved

    def _longest_walk(self) -> int:
        """From inside, a walk enters the points outside at one that no other of them leads to, and goes on until it leaves."""
        sizes = self._sizes.to(torch.int64)
        surplus = self._sides.to(torch.int64) ** 2 - sizes
        first = surplus.cumsum(0) - surplus
        groups = torch.arange(len(sizes)).repeat_interleave(surplus)
        points = torch.arange(len(groups)) - first[groups] + sizes[groups]
        images = self._once(points.to(self._sizes.dtype), groups).to(torch.int64)
        entered = torch.ones(len(points), dtype=torch.bool)
        inner = images >= sizes[groups]
        entered[(first[groups] + images - sizes[groups])[inner]] = False
        points, groups, walks = images[entered], groups[entered], min(1, int(entered.sum()))
        while bool((outside := points >= sizes[groups]).any()):
            walks += 1
            groups = groups[outside]
            points = self._once(points[outside].to(self._sizes.dtype), groups).to(torch.int64)
        return walks

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
