"""The space of a search: its parameters, and points of it as keys and values, as numbers of [0, 1), and as overrides."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from flatout.base.errors import RecipeError, UsageError, did_you_mean
from flatout.base.plain_yaml import read_yaml
from flatout.tuning.space.mappings import parameter_from
from flatout.tuning.space.parameter import Parameter

WHERE = "the space"


@dataclass(frozen=True)
class Space:
    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        if problems := problems_of(self.parameters):
            raise RecipeError(problems, WHERE)

    @cached_property
    def by_key(self) -> dict[str, Parameter]:
        return {one.key: one for one in self.parameters}

    @cached_property
    def parents_first(self) -> tuple[Parameter, ...]:
        order = TopologicalSorter({one.key: _parents(one) for one in self.parameters}).static_order()
        return tuple(self.by_key[key] for key in order)

    @cached_property
    def size(self) -> int | None:
        """The number of distinct points; None: infinitely many."""
        if any(one.count is None for one in self.parameters):
            return None
        return self._size_below({}, self.parents_first)

    def point(self, units: Sequence[float]) -> dict[str, Any]:
        """The point at one number of [0, 1) for each parameter. A parameter whose condition does not hold is absent."""
        unit_of = {one.key: unit for one, unit in zip(self.parameters, units, strict=True)}
        found: dict[str, Any] = {}
        for one in self.parents_first:
            if one.only_if is None or one.only_if.holds(found):
                found[one.key] = one.at(unit_of[one.key])
        return {one.key: found[one.key] for one in self.parameters if one.key in found}

    def units_of(self, point: Mapping[str, Any]) -> tuple[float, ...]:
        """A number of [0, 1) for each parameter; 0.5 for an absent one."""
        if strays := [key for key in point if key not in self.by_key]:
            raise UsageError(f"{strays[0]} is not in the space; {did_you_mean(strays[0], self.by_key)}")
        return tuple(one.unit_of(point[one.key]) if one.key in point else 0.5 for one in self.parameters)

    def overrides(self, point: Mapping[str, Any]) -> list[str]:
        """For `read_recipe(path, overrides)`. Shorter keys first: `optimizer=sgd` decides what `optimizer.momentum` means."""
        return [f"{key}={as_yaml(point[key])}" for key in sorted(point, key=lambda key: key.count("."))]

    def written(self) -> dict[str, Any]:
        """As JSON; `parse` restores it."""
        return {one.key: one.written() for one in self.parameters}

    @classmethod
    def parse(cls, written: Mapping[str, Any]) -> Space:
        return cls(tuple(parameter_from(key, value) for key, value in written.items()))

    def _size_below(self, point: dict[str, Any], left: tuple[Parameter, ...]) -> int:
        if not left:
            return 1
        one, *rest = left
        deciding = any(one.key in _parents(other) for other in rest)
        if one.only_if is not None and not one.only_if.holds(point):
            return self._size_below(point, tuple(rest))
        count = one.count or 0
        if not deciding:
            return count * self._size_below(point, tuple(rest))
        values = [one.at((place + 0.5) / count) for place in range(count)]
        return sum(self._size_below({**point, one.key: value}, tuple(rest)) for value in values)


def as_yaml(value: Any) -> str:
    """Text that our YAML reader reads as exactly this value."""
    if isinstance(value, float) and math.isfinite(value):
        return repr(float(value))  # also of NumPy's
    return value if isinstance(value, str) and _needs_no_quotes(value) else json.dumps(value)


@lru_cache(1024)  # of few names, one is written for each trial
def _needs_no_quotes(text: str) -> bool:
    try:
        return bool(text.strip()) and read_yaml(text) == (text, [])
    except UsageError:
        return False


def problems_of(parameters: Sequence[Parameter]) -> list[str]:
    """What is wrong with parameters together; each alone was checked when it was read."""
    keys = [one.key for one in parameters]
    problems = [f"{key}: written twice" for place, key in enumerate(keys) if key in keys[:place]]
    by_key = {one.key: one for one in parameters}
    for one in parameters:
        if one.only_if is None:
            continue
        parent = by_key.get(one.only_if.key)
        if parent is None:
            named = f"{one.only_if.key!r} is not in the space; {did_you_mean(one.only_if.key, set(keys) - {one.key})}"
            problems.append(f"{one.key}: its condition needs a parameter with several values: {named}")
            continue
        for value in one.only_if.values:
            if not parent.has(value):
                has = f"it has {parent.domain.describe()}"
                problems.append(f"{one.key}: {parent.key} never has the value {value!r} of its condition; {has}")
    try:
        TopologicalSorter({one.key: _parents(one) & set(keys) for one in parameters}).prepare()
    except CycleError as error:
        problems.append(f"circular conditions: {' needs '.join(reversed(error.args[1]))}; remove one of them")
        return problems
    if not problems and math.prod(min(one.count or 2, 2) for one in parameters) == 1:
        problems.append("the space has one point: write a range or choices for a key, such as lr=1e-4..1e-1")
    return problems


def _parents(one: Parameter) -> set[str]:
    return set() if one.only_if is None else {one.only_if.key}


def all_points(space: Space) -> list[dict[str, Any]]:
    """Every point of a space with finitely many."""
    units = [[(place + 0.5) / (one.count or 1) for place in range(one.count or 1)] for one in space.parameters]
    found = {json.dumps(point, default=str): point for point in map(space.point, itertools.product(*units))}
    return list(found.values())
