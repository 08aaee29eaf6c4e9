"""The repeated blocks of a model, such as the layers of a transformer, and which of them are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The largest list of equal modules, else the parts of the largest list, else the whole model as one block."""
    best: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            children = [child for child in module if any(True for _ in child.parameters())]
            like = [child for child in children if type(child) is type(children[0]) and any(True for _ in child.children())]
            found = like if len(like) >= 2 else children
            if len(found) >= 2 and _size(found) > _size(best):
                best = found
    return best or [model]


def form_of_value(value: Any, *, numbers: bool = True) -> object:
    """Equal for values with which a block does the same work. With `numbers`, different numbers count as different."""
    match value:
        case Tensor():
            kind = type(value).__name__, value.dtype, str(value.device), value.requires_grad
            return (*kind, tuple(value.shape), value.stride() if value.layout is torch.strided else ())
        case dict():
            return ("dict", tuple((repr(key), form_of_value(one, numbers=numbers)) for key, one in value.items()))
        case list() | tuple() | set() | frozenset():
            return (type(value).__name__, tuple(form_of_value(one, numbers=numbers) for one in value))
        case nn.Module():
            return ("module", id(value))
        case bool():
            return value
        case int() | float() if not numbers:
            return type(value).__name__
        case _ if isinstance(value, _PLAIN):
            return (type(value).__name__, value)
    return ("object", id(value))


def form_of(block: nn.Module, *, numbers: bool = True) -> object:
    """Equal for blocks that do the same work: the same module types, with equal attributes and equal tensor shapes.

    An attribute that can't be compared equals only itself. Without `numbers`, blocks that differ only in numbers, such as a
    layer index or a dropout rate, are equal, although they may do different work.
    """
    return tuple((name, type(module), _attributes(module, numbers)) for name, module in block.named_modules())


def differing_numbers(block: nn.Module, others: Sequence[nn.Module]) -> dict[str, set[str]]:
    """By module name: number attributes of `block` that differ in one of the other blocks."""
    found: dict[str, set[str]] = {}
    for other in others:
        for (name, module), (_, alike) in zip(block.named_modules(), other.named_modules(), strict=True):
            there = vars(alike)
            names = {one for one, value in vars(module).items() if one != "_modules" and _differ(value, there.get(one))}
            if names:
                found.setdefault(name, set()).update(names)
    return found


def _differ(value: Any, other: Any) -> bool:
    return form_of_value(value) != form_of_value(other)


def _attributes(module: nn.Module, numbers: bool) -> object:
    values = sorted(vars(module).items())
    return tuple((name, form_of_value(value, numbers=numbers)) for name, value in values if name != "_modules")


def _size(modules: Sequence[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
