"""Points as columns of numbers for the model: ordered values on one axis, names on one axis each, absent values apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flatout.tuning.space.domains import Choices, Mixture
from flatout.tuning.space.parameter import Parameter
from flatout.tuning.space.space import Space

Array = npt.NDArray[np.float64]
_APART = 0.7071  # two different names are at a distance of 1


def features_of(space: Space, units: Sequence[Sequence[float]] | Array) -> Array:
    table = np.asarray(units, dtype=np.float64).reshape(len(units), len(space.parameters))
    exists = _existing(space, table)
    columns: list[Array] = []
    for place, one in enumerate(space.parameters):
        active = exists[one.key]
        own = [np.where(active, column, 0.5) for column in _columns(one, table[:, place])]
        if one.only_if is not None:
            own.append(np.where(active, _APART, 0.0))
        columns += own
    return np.stack(columns, axis=1) if columns else np.zeros((len(table), 0))


def _existing(space: Space, table: Array) -> dict[str, npt.NDArray[np.bool_]]:
    """Which parameters exist at each point."""
    places = {one.key: place for place, one in enumerate(space.parameters)}
    found: dict[str, npt.NDArray[np.bool_]] = {}
    for one in space.parents_first:
        found[one.key] = np.ones(len(table), bool)
        if one.only_if is not None:
            parent, condition = space.by_key[one.only_if.key], one.only_if
            units = table[:, places[parent.key]]
            if isinstance(parent.domain, Choices):  # a value is looked up, not made for each point
                count = parent.domain.count
                holds = np.array([condition.holds({parent.key: value}) for value in parent.domain.values])
                holds = holds[np.clip((units * count).astype(int), 0, count - 1)]
            else:
                holds = np.array([condition.holds({parent.key: parent.at(unit)}) for unit in units.tolist()], bool)
            found[one.key] = found[parent.key] & holds
    return found


def _columns(one: Parameter, units: Array) -> list[Array]:
    if isinstance(one.domain, Choices):
        count = one.domain.count
        chosen = np.minimum((units * count).astype(int), count - 1)
        if one.domain.ordered:
            return [(chosen + 0.5) / count]
        return [np.where(chosen == place, _APART, 0.0) for place in range(count)]
    if isinstance(one.domain, Mixture):
        shares = one.domain.shares()
        which = np.minimum(np.searchsorted([end for _, _, end in shares], units, side="right"), len(shares) - 1)
        return [units, *(np.where(which == place, _APART, 0.0) for place in range(len(shares)))]
    return [units]
