"""The recipe as it is, as a point of the space: it is tried first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.errors import UsageError
from flatout.engine.optimizers import parse_schedule
from flatout.recipe.schema import SPECS, Recipe
from flatout.tuning.space.space import Space

_ABSENT = object()


def own_point(recipe: Recipe, space: Space) -> dict[str, Any] | None:
    """None if the recipe does not write a value that the space needs, or writes one outside of it."""
    if recipe.searches_rate and "lr" in space.by_key:
        return None
    written = recipe.written()
    schedule = parse_schedule(recipe.schedule)
    point: dict[str, Any] = {}
    for parameter in space.parents_first:
        if parameter.only_if is not None and not parameter.only_if.holds(point):
            continue
        value = schedule.warmup if parameter.key == "schedule.warmup" else _value_at(written, parameter.key.split("."))
        if value is _ABSENT or not parameter.has(value):
            return None
        point[parameter.key] = value
    try:
        at_it = space.point(space.units_of(point))
    except (UsageError, TypeError, ValueError):
        return None
    return at_it if at_it == point else None


def _value_at(written: Mapping[str, Any], path: list[str]) -> Any:
    place: Any = written
    for depth, key in enumerate(path):
        if depth == 1 and path[0] in SPECS and isinstance(place, Mapping) and key not in place and len(place) == 1:
            (place,) = place.values()  # `model.hidden` means the option of the model that is there
        if not isinstance(place, Mapping) or key not in place:
            return _ABSENT
        place = place[key]
    if len(path) == 1 and path[0] in SPECS and isinstance(place, Mapping):
        return next(iter(place)) if len(place) == 1 and not next(iter(place.values())) else place
    return place
