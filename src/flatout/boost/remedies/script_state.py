"""What a forward goes by that a script can set without a word to the model: entries of its tables and lists, attributes of
plain objects (a configuration, arguments) and of its class, and globals. Few values as a rule, looked at before each call."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_SIMPLE = frozenset({bool, int, float, str, bytes, type(None)})
_DRAW = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_DEEP, _MOST = 4, 2000

Entries = Iterable[tuple[Any, Any]]


class ScriptState:
    """`cannot_tell`: there is more of it than can be looked at each time, or a generator, which changes by being drawn from.

    What a forward reaches is told by the names in its code, and in that of whatever it calls by such a name.
    """

    def __init__(self, module: nn.Module) -> None:
        self.cannot_tell = False
        self._looks: list[Callable[[], Entries]] = []
        self._size = 0
        self._known: list[Any] = []  # and so kept: the number of one that is gone may be another's
        self._numbers: set[int] = set()
        reached: dict[type, set[str]] = {}
        for part in module.modules():
            kind = type(part)
            if not _is_own(kind):
                continue
            if kind not in reached:
                reached[kind] = self._reached(kind, {"forward"})
                self._walk_class(kind, reached[kind], 0)
            for name in reached[kind] & vars(part).keys():  # one that is set anew is heard of by other means
                self._walk(vars(part)[name], reached[kind], 1)

    def seen(self) -> list[Any]:
        """Unequal to what it was where something has changed."""
        return [(name, one if type(one) in _SIMPLE else id(one)) for look in self._looks for name, one in look()]

    def _reached(self, kind: type, names: set[str]) -> set[str]:
        """All names in the methods of a class that are called by these names, and in those that they call."""
        found, fresh = set(names), set(names)
        while fresh:
            methods = [_function(inspect.getattr_static(kind, name, None)) for name in fresh]
            used = {name for method in methods if method is not None for name in self._names_in(method)}
            fresh = used - found
            found |= used
        return found

    def _names_in(self, function: FunctionType, depth: int = 0) -> set[str]:
        """And what it finds under those that are globals: values, and functions that it calls."""
        if not _is_own(function):
            return set()
        names = set(_names(function.__code__))
        if self._is_new(function) and depth < _DEEP:
            there = function.__globals__
            self._look_at(there, [name for name in names if name in there])
            for name in names & there.keys():
                if isinstance(there[name], FunctionType):
                    names |= self._names_in(there[name], depth + 1)
                else:
                    self._walk(there[name], names, 1)
            for cell in function.__closure__ or ():
                names |= self._names_behind(cell, names, depth)
        return names

    def _names_behind(self, cell: CellType, names: set[str], depth: int) -> set[str]:
        """A variable of the function around; for a forward with a decorator that is the forward itself."""
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty yet
            return set()
        self._look(lambda: [("", cell.cell_contents)])
        if isinstance(value, FunctionType):
            return self._names_in(value, depth + 1)
        self._walk(value, names, 1)
        return set()

    def _walk(self, value: Any, names: set[str], depth: int) -> None:
        if isinstance(value, _DRAW):
            self.cannot_tell = True
        elif depth >= _DEEP or isinstance(value, nn.Module | Tensor | np.ndarray | type | ModuleType):
            return
        elif isinstance(value, dict | list):
            if self._is_new(value):
                self._look(value.items if isinstance(value, dict) else partial(enumerate, value))
                for one in list(value.values() if isinstance(value, dict) else value):
                    self._walk(one, names, depth + 1)
        elif type(value) in (tuple, set, frozenset):
            for one in value:
                self._walk(one, names, depth + 1)
        elif _is_own(type(value)) and isinstance(getattr(value, "__dict__", None), dict) and self._is_new(value):
            more = self._reached(type(value), names)
            there = more & vars(value).keys()
            self._look_at(vars(value), sorted(there))
            for name in there:
                self._walk(vars(value)[name], more, depth + 1)
            self._walk_class(type(value), more, depth)

    def _walk_class(self, kind: type, names: set[str], depth: int) -> None:
        for owner in kind.__mro__:
            if _is_own(owner) and self._is_new(owner):
                there = [name for name in names & vars(owner).keys() if not callable(vars(owner)[name])]
                self._look_at(vars(owner), there)
                for name in there:
                    self._walk(vars(owner)[name], names, depth + 1)

    def _look_at(self, table: Mapping[str, Any], names: list[str]) -> None:
        told = [name for name in names if not isinstance(table[name], type | ModuleType)]
        if told:
            self._look(lambda: [(name, table.get(name)) for name in told])

    def _look(self, look: Callable[[], Entries]) -> None:
        self._looks.append(look)
        self._size += sum(1 for _ in look())
        self.cannot_tell |= self._size > _MOST

    def _is_new(self, thing: Any) -> bool:
        if id(thing) in self._numbers:
            return False
        self._known.append(thing)
        self._numbers.add(id(thing))
        return True


def _function(found: Any) -> FunctionType | None:
    """Of a method, or behind a property."""
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, classmethod | staticmethod):
        found = found.__func__
    return found if isinstance(found, FunctionType) else None


def _is_own(thing: Any) -> bool:
    """Not of torch, and not built in: what it does may go by what a script sets."""
    module = getattr(thing, "__module__", None) or "builtins"
    return module.partition(".")[0] not in ("torch", "builtins", "numpy", "collections")


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
