"""Keyed permutations that are evaluated at any point without the others.

Each is a Feistel network over pairs (left, right), both below side = ceil(sqrt(size)). Results that fall outside of the
size (at most 2 * side of side * side) are sent through again until they fall inside. NumPy stands in for the two
operations that torch gives to several threads at any size, which stalls where cores are shared.
"""

from __future__ import annotations

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
        self._alike = bool((sizes == sizes[0]).all())
        self._sizes, self._sides, self._starts = sizes.to(work), sides.to(work), starts.to(work)

    def __call__(self, points: Tensor, groups: Tensor) -> Tensor:
        mixed = self._once(points.to(self._sizes.dtype), groups)
        outside = torch.from_numpy(np.flatnonzero((mixed >= self._of(self._sizes, groups)).numpy()))
        while len(outside):
            groups_outside = groups[outside]
            again = self._once(mixed[outside], groups_outside)
            mixed[outside] = again
            outside = outside[again >= self._of(self._sizes, groups_outside)]
        return mixed.to(torch.int64)

    def _once(self, points: Tensor, groups: Tensor) -> Tensor:
        side = self._of(self._sides, groups)
        starts = self._starts.index_select(0, groups)
        left = floor_divide(points, side)
        right = points - left * side
        for function in self._rounds:
            left.add_(function.index_select(0, right + starts))
            left.add_((left >> 31).bitwise_and_(side))
            left, right = right, left
        return left.mul_(side).add_(right)

    def _of(self, values: Tensor, groups: Tensor) -> int | Tensor:
        return int(values[0]) if self._alike else values.index_select(0, groups)


def floor_divide(values: Tensor, by: int | Tensor) -> Tensor:
    """Exact for values below 2**52, and faster than integer division, which processors do one at a time."""
    return values.to(torch.float64).div_(by).to(values.dtype)
