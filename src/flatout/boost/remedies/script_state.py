"""Values outside the model's own attributes that a forward depends on and a script can change: entries of dicts and lists,
attributes of plain objects (a configuration, arguments) and of its class, and globals. They are checked before each call."""

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
    """`cannot_tell`: there are too many values to check each time, or a random generator, whose state changes with each draw.

    The values are found by the names in the forward's code and in the code that it calls.
    """

    def __init__(self, module: nn.Module) -> None:
        self.cannot_tell = False
        self._looks: list[Callable[[], Entries]] = []
        self._size = 0
        self._known: list[Any] = []  # keeps objects alive, because the id of a deleted object may be reused
        self._numbers: set[int] = set()
        reached: dict[type, set[str]] = {}
        for part in module.modules():
            kind = type(part)
            if not _is_own(kind):
                continue
            if kind not in reached:
                reached[kind] = self._reached(kind, {"forward"})
                self._walk_class(kind, reached[kind], 0)
            for name in reached[kind] & vars(part).keys():  # a newly set attribute is noticed by `Changes`
                self._walk(vars(part)[name], reached[kind], 1)

    def seen(self) -> list[Any]:
        """The present values; unequal to earlier ones if something has changed."""
        return [(name, one if type(one) in _SIMPLE else id(one)) for look in self._looks for name, one in look()]

    def _reached(self, kind: type, names: set[str]) -> set[str]:
        """All names used in methods of a class with these names, and in the methods that they call."""
        found, fresh = set(names), set(names)
        while fresh:
            methods = [_function(inspect.getattr_static(kind, name, None)) for name in fresh]
            used = {name for method in methods if method is not None for name in self._names_in(method)}
            fresh = used - found
            found |= used
        return found

    def _names_in(self, function: FunctionType, depth: int = 0) -> set[str]:
        """The names in a function's code. Also registers its globals and closure variables, and follows its calls."""
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
        """Names reached through a closure variable; behind a decorator this may be the forward itself."""
        try:
            value = cell.cell_contents
        except ValueError:  # the cell is still empty
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
    """The plain function of a method or a property."""
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, classmethod | staticmethod):
        found = found.__func__
    return found if isinstance(found, FunctionType) else None


def _is_own(thing: Any) -> bool:
    """Is it neither torch's nor built in? Then it may depend on values that the script sets."""
    module = getattr(thing, "__module__", None) or "builtins"
    return module.partition(".")[0] not in ("torch", "builtins", "numpy", "collections")


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
