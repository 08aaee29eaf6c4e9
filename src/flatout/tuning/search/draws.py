"""New points: an even cover of the space first, later those of which the model expects most."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from flatout.tuning.search.features import Array, features_of
from flatout.tuning.search.model import Model
from flatout.tuning.space.domains import BELOW_ONE
from flatout.tuning.space.space import Space, all_points

_CANDIDATES, _NEAR = 600, 600
_MOST_LISTED = 4096


def name_of(point: Mapping[str, Any]) -> str:
    """Equal for equal points."""
    return json.dumps(dict(point), sort_keys=True, default=str)


class Draws:
    """Points that were not drawn before. Deterministic by its seed and the order of calls."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.random = np.random.default_rng([seed % 2**63, 1])
        self.sobol = torch.quasirandom.SobolEngine(max(1, len(space.parameters)), scramble=True, seed=seed % 2**63)
        self.drawn: set[str] = set()
        listed = space.size is not None and space.size <= _MOST_LISTED
        self.all_units = np.array([space.units_of(point) for point in all_points(space)]) if listed else None

    def given(self, point: Mapping[str, Any]) -> bool:
        """Whether this point is new; from now on it is not."""
        name = name_of(point)
        new = name not in self.drawn
        self.drawn.add(name)
        return new

    def even(self, count: int) -> list[tuple[float, ...]]:
        """By a scrambled Sobol sequence."""
        found: list[tuple[float, ...]] = []
        for _ in range(8):
            drawn = self.sobol.draw(max(count, 1)).double().clamp(0, BELOW_ONE).numpy()
            found += self._new(drawn, count - len(found))
            if len(found) == count:
                return found
        if self.all_units is not None:
            found += self._new(self.random.permutation(self.all_units), count - len(found))
        return found

    def promising(self, count: int, model: Model, best: Sequence[Sequence[float]], incumbent: float) -> list[tuple[float, ...]]:
        """Those with the highest expected improvement, one after another; each is taken as if it gave what is expected."""
        units = self._candidates(best)
        if self.all_units is not None:
            units = np.array([row for row in units if name_of(self.space.point(row)) not in self.drawn])
        if not len(units):
            return []
        known = model.together(features_of(self.space, units))
        mean, variance = known.mean.copy(), known.variance.copy()
        found: list[tuple[float, ...]] = []
        most = min(8 * count, len(units))
        roots = np.zeros((most, len(units)))
        for turn in range(most):
            chosen = int(np.argmax(expected_improvement(mean, np.sqrt(np.maximum(variance, 1e-12)), incumbent)))
            column = known.covariance(chosen) - roots[:turn, chosen] @ roots[:turn]
            roots[turn] = column / math.sqrt(max(column[chosen], 1e-9))
            variance = np.maximum(variance - roots[turn] ** 2, 0.0)
            variance[chosen] = 0.0
            mean[chosen] = -math.inf
            found += self._new(units[chosen : chosen + 1], 1)
            if len(found) == count:
                break
        return found

    def _candidates(self, best: Sequence[Sequence[float]]) -> Array:
        if self.all_units is not None:
            return (
                self.all_units if len(self.all_units) <= _CANDIDATES else self.random.permutation(self.all_units)[:_CANDIDATES]
            )
        axes = len(self.space.parameters)
        wide = self.random.random((_CANDIDATES, axes))
        around = np.asarray(best, dtype=np.float64)
        if not len(around):
            return wide
        centres = around[self.random.integers(0, len(around), _NEAR)]
        width = 10 ** self.random.uniform(-2.0, -0.5, (_NEAR, 1))
        moved = self.random.random((_NEAR, axes)) < np.maximum(0.4, 2 / axes)
        near = centres + moved * width * self.random.normal(size=(_NEAR, axes))
        near = np.abs(near)  # reflected at both ends
        return np.concatenate([wide, np.clip(1 - np.abs(1 - near), 0, BELOW_ONE)])

    def _new(self, rows: Array, most: int) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []
        for row in rows:
            if len(found) >= most:
                break
            if self.given(self.space.point(row)):
                found.append(tuple(float(unit) for unit in row))
        return found


def expected_improvement(mean: Array, deviation: Array, over: float) -> Array:
    """Of points whose mean is minus infinity it is minus infinity: they are taken already."""
    wide, above = torch.from_numpy(deviation), torch.from_numpy(mean) - over
    z = (above / wide).clamp_min_(-40.0)
    improvement = torch.where(above.isfinite(), above * (z / math.sqrt(2)).erf_().add_(1).mul_(0.5), -math.inf)
    density = z.square_().mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
    return np.asarray(improvement.add_(density.mul_(wide)).numpy())
