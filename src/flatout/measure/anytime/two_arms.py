"""Is a share larger in one arm than in the other? An e-process from counts, valid however often one looks.

A look counts, in both arms, how many of n requests were hits (errors, slow answers, wrong answers). The null hypothesis is
a half of the plane of both shares: canary <= ratio * stable + points, or the other half. For a look with these n and a pair of
shares outside of the null, the likelihood ratio against the nearest pair of the null (by Kullback-Leibler divergence, weighted
by n) has a mean of at most 1 under every pair of the null. The proof: under a pair q its mean is the product over arms of
(1 + slope * (q - nearest)) ** n, whose logarithm is concave in q, 0 at the nearest pair, and does not grow in any direction
that stays in a convex null, since the divergence is smallest there (after Turner, Ly and Grünwald, "Generic E-variables for
exact sequential k-sample tests", 2024). Factors of several looks multiply, so shares may change from look to look, arms may
have any sizes, and the pair outside may be chosen from earlier looks. Averages over such pairs are valid too.

The probability that the e-value ever reaches 1/alpha is at most alpha if the null is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.base.errors import UsageError

Array = np.ndarray[Any, Any]

LEAST = 1e-9  # shares are kept this far from 0 and 1
ODDS = (0.12, 0.24, 0.48, 0.96, 1.92, 3.84)
"""How far from the null's edge the pairs outside lie, as differences of log odds: one of them is near any difference."""

_STEPS = 45  # of a bisection
_LONG_HISTORY = 50_000  # earlier requests count at most as much as so many


@dataclass(frozen=True)
class ArmCounts:
    """Hits among n requests, in both arms. Numbers, or arrays of equal shape for many experiments at once."""

    stable_n: Any
    stable_hits: Any
    canary_n: Any
    canary_hits: Any

    def __add__(self, other: ArmCounts) -> ArmCounts:
        return ArmCounts(
            self.stable_n + other.stable_n,
            self.stable_hits + other.stable_hits,
            self.canary_n + other.canary_n,
            self.canary_hits + other.canary_hits,
        )


@dataclass(frozen=True)
class ShareNull:
    """canary <= ratio * stable + points; with `above`, canary >= ratio * stable + points. Arrays are many nulls at once."""

    ratio: Any = 1.0
    points: Any = 0.0
    above: Any = False

    def __post_init__(self) -> None:
        if not np.all((np.asarray(self.ratio) > 0) & (np.abs(self.points) < 1)):
            raise UsageError(f"expected a ratio above 0 and points between -1 and 1, got {self.ratio} and {self.points}")

    def with_axis(self) -> ShareNull:
        """For shares that have one more axis, last."""
        return ShareNull(*(np.asarray(one)[..., None] for one in (self.ratio, self.points, self.above)))

    def edge(self, stable: Any) -> Array:
        """The share of the canary at the edge of the null."""
        return _inside(self.ratio * np.asarray(stable, np.float64) + self.points)

    def holds(self, stable: Any, canary: Any) -> Array:
        over = np.asarray(canary) - (self.ratio * np.asarray(stable) + self.points)
        return np.asarray(np.where(self.above, over >= 0, over <= 0))

    def outside(self, stable: Any, odds: Any = ODDS) -> Array:
        """Shares of the canary beyond the edge: one more axis, last."""
        edge = self.edge(stable)[..., None]
        away = np.where(self.above, -1.0, 1.0)[..., None] * np.asarray(odds)
        return _inside(1 / (1 + (1 - edge) / edge * np.exp(-away)))

    def nearest(self, stable_n: Any, canary_n: Any, stable: Any, canary: Any) -> tuple[Array, Array]:
        """The pair of the null with the least divergence from a pair of shares, weighted by the sizes of the arms."""
        stable_n, canary_n, stable, canary = np.broadcast_arrays(stable_n, canary_n, stable, canary)
        low = np.broadcast_to(np.maximum(LEAST, (LEAST - self.points) / self.ratio), stable.shape)
        high = np.broadcast_to(np.minimum(1 - LEAST, (1 - LEAST - self.points) / self.ratio), stable.shape)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            other = _inside(self.ratio * middle + self.points)
            slope = stable_n * (middle - stable) / (middle * (1 - middle))
            slope = slope + canary_n * self.ratio * (other - canary) / (other * (1 - other))
            low, high = np.where(slope < 0, middle, low), np.where(slope < 0, high, middle)
        middle = (low + high) / 2
        inside = self.holds(stable, canary)
        other = _inside(self.ratio * middle + self.points)
        return np.where(inside, stable, middle), np.where(inside, canary, other)


def log_factor(null: ShareNull, counts: ArmCounts, stable: Any, canary: Any) -> Array:
    """The logarithm of one look's e-value, for a pair of shares that was chosen before the look."""
    near_stable, near_canary = null.nearest(counts.stable_n, counts.canary_n, stable, canary)
    return _log_ratio(counts.stable_n, counts.stable_hits, stable, near_stable) + _log_ratio(
        counts.canary_n, counts.canary_hits, canary, near_canary
    )


class TwoArmTest:
    """The evidence against a null, look by look. `shape` is that of the counts: () for one experiment."""

    def __init__(self, null: ShareNull, shape: tuple[int, ...] = (), odds: tuple[float, ...] = ODDS) -> None:
        self.null, self._odds = null, odds
        self._log_wealth = np.zeros((*shape, len(odds)))
        self._earlier_n, self._earlier_hits = np.zeros(shape), np.zeros(shape)
        self.highest = np.zeros(shape)  # log of the largest e-value so far

    def look(self, counts: ArmCounts) -> None:
        """Counts since the last look. When to look must not depend on who had the hits."""
        _check(counts)
        known = self._earlier_n > 0
        stable = _inside((self._earlier_hits + 0.5) / (self._earlier_n + 1))
        canary = self.null.outside(stable, self._odds)
        many = ArmCounts(*(np.asarray(one, np.float64)[..., None] for one in vars(counts).values()))
        factor = log_factor(self.null.with_axis(), many, stable[..., None], canary)
        self._log_wealth = self._log_wealth + np.where(known[..., None], factor, 0.0)
        n = self._earlier_n + counts.stable_n
        kept = np.minimum(1.0, _LONG_HISTORY / np.maximum(n, 1))
        self._earlier_n, self._earlier_hits = n * kept, (self._earlier_hits + counts.stable_hits) * kept
        self.highest = np.maximum(self.highest, self.log_e)

    @property
    def log_e(self) -> Array:
        top = self._log_wealth.max(-1)
        return np.asarray(top + np.log(np.exp(self._log_wealth - top[..., None]).mean(-1)))

    def to_json(self) -> dict[str, Any]:
        return {
            "log_wealth": self._log_wealth.tolist(),
            "earlier_n": self._earlier_n.tolist(),
            "earlier_hits": self._earlier_hits.tolist(),
            "highest": self.highest.tolist(),
        }

    def restore(self, written: Mapping[str, Any]) -> None:
        """ValueError if it was written by a test of another shape."""
        self._log_wealth = np.array(written["log_wealth"], np.float64).reshape(self._log_wealth.shape)
        for name in ("earlier_n", "earlier_hits"):
            setattr(self, f"_{name}", np.array(written[name], np.float64).reshape(self.highest.shape))
        self.highest = np.array(written["highest"], np.float64).reshape(self.highest.shape)


def log_mean(log_values: Any, weights: Any) -> Array:
    """The logarithm of the weighted mean of e-values, over the last axis: an e-value of the null that all nulls are true."""
    log_values, weights = np.asarray(log_values, np.float64), np.asarray(weights, np.float64)
    top = log_values.max(-1)
    return np.asarray(top + np.log((np.exp(log_values - top[..., None]) * weights).sum(-1) / weights.sum()))


def _log_ratio(n: Any, hits: Any, share: Any, near: Any) -> Array:
    return np.asarray(hits * np.log(share / near) + (n - hits) * np.log((1 - share) / (1 - near)))


def _inside(share: Any) -> Array:
    return np.asarray(np.clip(share, LEAST, 1 - LEAST))


def _check(counts: ArmCounts) -> None:
    for name, n, hits in (("stable", counts.stable_n, counts.stable_hits), ("canary", counts.canary_n, counts.canary_hits)):
        if np.any(np.asarray(hits) < 0) or np.any(np.asarray(hits) > np.asarray(n)):
            raise UsageError(f"expected 0 to n hits in the {name} arm, got {hits} of {n}")
