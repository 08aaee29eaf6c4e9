"""The trained parameters of all trials of a stack in one matrix: a row for each trial, the parameters that decay first.

One matrix is updated by one kernel. Each parameter starts at a multiple of 128 bytes, because products of matrices and kernels
on a GPU read aligned memory in larger pieces; the gaps hold zeros, whose gradient is zero, and stay zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

_ALIGNED = 32  # numbers


@dataclass(frozen=True)
class Part:
    """Columns of the matrix that share a decay and a factor of the rate."""

    start: int
    stop: int
    decays: bool
    factor: float


class Weights:
    """`flat` is [trials, numbers], `leaves` are views of it by name, which gradients are taken of."""

    def __init__(self, flat: Tensor, shapes: Mapping[str, torch.Size], parts: Sequence[Part]) -> None:
        self.flat, self.shapes, self.parts = flat, dict(shapes), tuple(parts)
        self.leaves = {name: view.detach().requires_grad_() for name, view in self.views(flat).items()}

    @classmethod
    def of(cls, rows: Mapping[str, Tensor], rates: Mapping[str, float], device: torch.device) -> Weights:
        """`rows`: each parameter with a leading axis of trials. `rates`: factors of the learning rate by parameter."""

        def kind(name: str) -> tuple[bool, float]:
            return rows[name].ndim > 2, rates.get(name, 1.0)  # as in a run: matrices decay

        order = sorted(rows, key=lambda name: (not kind(name)[0], kind(name)[1]))
        shapes = {name: rows[name].shape[1:] for name in order}
        starts = _starts(shapes.values())
        dtype = reduce(torch.promote_types, (one.dtype for one in rows.values()))
        flat = torch.zeros(len(rows[order[0]]), starts[-1], dtype=dtype)
        parts: list[Part] = []
        for name, start, stop in zip(order, starts[:-1], starts[1:], strict=True):
            flat[:, start : start + shapes[name].numel()] = rows[name].flatten(1) if shapes[name] else rows[name][:, None]
            decays, factor = kind(name)
            if parts and (parts[-1].decays, parts[-1].factor) == (decays, factor):
                parts[-1] = Part(parts[-1].start, stop, decays, factor)
            else:
                parts.append(Part(start, stop, decays, factor))
        return cls(flat.to(device), shapes, parts)

    def leaves_in(self, dtype: torch.dtype, names: Collection[str]) -> dict[str, Tensor]:
        """The leaves, but these as copies in another dtype, which gradients are taken of instead."""
        copied = self.views(self.flat.to(dtype))
        return {name: copied[name].detach().requires_grad_() if name in names else leaf for name, leaf in self.leaves.items()}

    def picked(self, places: Tensor) -> Weights:
        return Weights(self.flat[places], self.shapes, self.parts)

    def places(self) -> Iterator[tuple[int, Part]]:
        """Of each leaf: its first column, and the part that it lies in."""
        for start in _starts(self.shapes.values())[:-1]:
            yield start, next(part for part in self.parts if part.start <= start < part.stop)

    def views(self, matrix: Tensor) -> dict[str, Tensor]:
        """What a matrix like `flat` holds, by parameter."""
        found = {}
        for (name, shape), start in zip(self.shapes.items(), _starts(self.shapes.values())[:-1], strict=True):
            piece = matrix[:, start : start + shape.numel()]
            found[name] = piece.unflatten(1, shape) if shape else piece[:, 0]
        return found

    def row(self, matrix: Tensor, place: int) -> dict[str, Tensor]:
        return {name: view[place].clone() for name, view in self.views(matrix).items()}


def _starts(shapes: Iterable[torch.Size]) -> list[int]:
    """Where each parameter begins, and where all end."""
    found = [0]
    for shape in shapes:
        found.append(found[-1] + -(-shape.numel() // _ALIGNED) * _ALIGNED)
    return found
