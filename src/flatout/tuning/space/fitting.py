"""Checks a space against the recipe that it belongs to: each value that a key can have must be one that the recipe takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flatout.base.errors import RecipeError, UsageError
from flatout.tuning.space.parameter import Parameter
from flatout.tuning.space.space import WHERE, Space


def check_space(space: Space, read: Callable[[Sequence[str]], Any], plain: Sequence[str] = ()) -> None:
    """`read` makes the recipe with overrides, such as `partial(read_recipe, path)`. Raises RecipeError with all mistakes."""
    found: dict[str, str] = {}  # without the value that the recipe quotes: a range has one mistake, not one for each value
    for one in space.parameters:
        for unit in one.domain.probes():
            units = _active(space, one, unit)
            if units is None:
                found.setdefault(one.key, f"{one.key}: no point of the space fulfils its condition: {one.describe()}")
                break
            for problem in _problems(read, [*plain, *space.overrides(space.point(units))]):
                found.setdefault(problem.rpartition(", got ")[0] or problem, problem)
    if found:
        raise RecipeError(list(found.values()), WHERE)


def _problems(read: Callable[[Sequence[str]], Any], overrides: list[str]) -> Sequence[str]:
    try:
        read(overrides)
    except RecipeError as error:
        return error.problems
    except UsageError as error:
        return [str(error)]
    return []


def _active(space: Space, one: Parameter, unit: float) -> list[float] | None:
    """Numbers of a point at which this parameter exists, with its value at `unit`."""
    units = {other.key: 0.5 for other in space.parameters} | {one.key: unit}
    below = one
    while below.only_if is not None:
        condition, parent = below.only_if, space.by_key[below.only_if.key]
        tried = [*parent.domain.probes(), *(parent.unit_of(value) for value in condition.values)]
        fits = [at for at in tried if condition.holds({parent.key: parent.at(at)})]
        if not fits:
            return None
        units[parent.key] = fits[0]
        below = parent
    return [units[other.key] for other in space.parameters]
