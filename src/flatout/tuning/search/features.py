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
    points = [space.point(row.tolist()) for row in table] if any(one.only_if for one in space.parameters) else None
    columns: list[Array] = []
    for place, one in enumerate(space.parameters):
        active = np.ones(len(table), bool) if points is None else np.array([one.key in point for point in points], bool)
        own = [np.where(active, column, 0.5) for column in _columns(one, table[:, place])]
        if not active.all() or one.only_if is not None:
            own.append(np.where(active, _APART, 0.0))
        columns += own
    return np.stack(columns, axis=1) if columns else np.zeros((len(table), 0))


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
