"""Rows of equal blocks, as transformers and residual networks have them, and a copy of a model with fewer of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import nn


@dataclass(frozen=True)
class BlockRow:
    """Neighbours in a list of modules that are of one class, with weights of the same shapes."""

    container: str
    places: tuple[int, ...]


def rows_of_blocks(model: nn.Module) -> list[BlockRow]:
    """The outermost ones: what lies inside of a block goes or stays with it."""
    found, inside = list[BlockRow](), list[str]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Sequential | nn.ModuleList) and not name.startswith(tuple(inside)):
            blocks = list(module.named_children())
            for kind, row in groupby(enumerate(blocks), lambda one: _kind(one[1][1])):
                members = list(row)
                if kind is not None and len(members) > 1:
                    found.append(BlockRow(name, tuple(place for place, _ in members)))
                    inside += [f"{name}.{child}.".lstrip(".") for _, (child, _) in members]
    return found


def shallower(model: nn.Module, rows: Sequence[BlockRow], share: float) -> nn.Module:
    """A copy of `model` with `share` of the blocks of each row, evenly chosen, the first and the last among them."""
    made = copy.deepcopy(model)
    for row in sorted(rows, key=lambda row: row.places, reverse=True):
        container = made.get_submodule(row.container)
        assert isinstance(container, nn.Sequential | nn.ModuleList)
        kept = {row.places[place] for place in _evenly(len(row.places), max(1, round(share * len(row.places))))}
        for place in reversed(row.places):
            if place not in kept:
                del container[place]
    return made


def _kind(block: nn.Module) -> tuple[object, ...] | None:
    """None for what is a single layer or has no weights."""
    shapes = tuple((name, tuple(one.shape)) for name, one in block.named_parameters())
    return (type(block), shapes) if shapes and any(True for _ in block.children()) else None


def _evenly(size: int, count: int) -> list[int]:
    return [round(place * (size - 1) / max(1, count - 1)) for place in range(count)]
