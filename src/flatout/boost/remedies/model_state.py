"""The parts of a model that may change between two calls. A captured graph is valid until one of them changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flatout.doctor.patches import Patches

SIMPLE = frozenset({bool, int, float, str, type(None)})
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CHANGE: dict[type, tuple[str, ...]] = {
    nn.Module: (
        "__delattr__", "add_module", "register_module", "register_parameter", "register_buffer", "_apply",
        "register_forward_hook", "register_forward_pre_hook", "register_backward_hook", "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ),
    nn.Sequential: ("insert",),
    nn.ModuleList: ("insert",),
    nn.ModuleDict: ("__delitem__", "clear"),
}  # fmt: skip
_NOTHING = object()
_OF_TORCH = frozenset(vars(nn.Module()))
_DEEP, _MANY = 4, 256  # how deep, and how many items, containers of a model are read


class Changes:
    """Counts changes of any model. Checking a model at every call would take as long as a graph saves."""

    def __init__(self, patches: Patches) -> None:
        self.count = 0
        patches.wrap(nn.Module, "__setattr__", self._set)
        for owner, names in _CHANGE.items():
            for name in names:
                patches.wrap(owner, name, self._changed)

    def _set(self, original: Any) -> Any:
        def __setattr__(module: nn.Module, name: str, value: Any) -> None:
            if not torch.compiler.is_compiling() and module.__dict__.get(name, _NOTHING) is not value:
                self.count += 1
            original(module, name, value)

        return __setattr__

    def _changed(self, original: Any) -> Any:
        def method(*args: Any, **named: Any) -> Any:
            if not torch.compiler.is_compiling():
                self.count += 1
            return original(*args, **named)

        return method


class HostState:
    """The host state that a call may change, to restore it."""

    def __init__(self, module: nn.Module) -> None:
        self._parts = [
            (part, {name: value for name, value in vars(part).items() if type(value) in SIMPLE}, dict(part._buffers))
            for part in module.modules()
        ]
        # without nn.Module's own attributes, which hold registered weights and hooks
        kept = [value for part in module.modules() for name, value in vars(part).items() if name not in _OF_TORCH]
        self._lists = [(value, list(value)) for value in kept if type(value) is list]
        self._tables = [(value, dict(value)) for value in kept if type(value) is dict]
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def has_drawn(self) -> bool:
        now: Any = np.random.get_state()
        was: Any = self._numpy
        same = random.getstate() == self._python and torch.equal(torch.get_rng_state(), self._torch)
        return not same or now[2] != was[2] or not np.array_equal(now[1], was[1])

    def put_back(self) -> None:
        for part, simple, buffers in self._parts:
            vars(part).update(simple)
            part._buffers.update(buffers)
        for values, were in self._lists:
            values[:] = were
        for table, was in self._tables:
            table.clear()
            table.update(was)
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)


def places_of(slots: list[tuple[dict[str, Any], str]]) -> list[tuple[int, int, bool]]:
    found = []
    for tensors, name in slots:
        tensor = tensors.get(name)
        if isinstance(tensor, Tensor):
            found.append((id(tensor), tensor.data_ptr(), tensor.requires_grad))
        else:
            found.append((0, 0, False))
    return found


def state_of(module: nn.Module) -> tuple[Any, ...]:
    """Everything in a model that may change between two calls, except the values of its tensors."""
    found: list[Any] = []
    for part in module.modules():
        found.append((id(part), type(part)))
        own = part.__dict__
        for value in own.values():
            for one in inside(value):
                if isinstance(one, Tensor):
                    found.append((id(one), one.data_ptr(), one.requires_grad))
                elif _tells(one):
                    found.append(one)
        for tensors in (part._parameters, part._buffers):
            found += [(id(one), one.data_ptr(), one.requires_grad) for one in tensors.values() if one is not None]
        found += [len(own[kind]) for kind in HOOKS if kind in own]
    return tuple(found)


def inside(value: Any, depth: int = 0) -> Iterator[Any]:
    """The value itself, or the length and the items of a container."""
    if type(value) in (tuple, list, dict) and depth < _DEEP:
        yield len(value)
        for one in list(value.items() if type(value) is dict else value)[:_MANY]:
            yield from inside(one, depth + 1)
    else:
        yield value


def _tells(value: Any) -> bool:
    """Can a forward depend on it, and does it compare by value?"""
    return type(value) in SIMPLE or isinstance(value, torch.dtype | torch.device) or callable(value)
