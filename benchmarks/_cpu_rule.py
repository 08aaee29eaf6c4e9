"""Kubernetes' usual rule, for comparison: by the share of the requested cores that is used."""

from __future__ import annotations

import math
from collections.abc import Callable

from flatout.fleet import scaling
from flatout.fleet.scaling import ReplicaRange
from flatout.fleet.scaling_simulation import ScalerView, Simulated, Wanted


def by_cpu(target: float, replicas: ReplicaRange) -> Wanted:
    """Kubernetes' rule on the share of the requested cores that is used. Replicas that are not ready count as unused."""

    def wanted(seen: ScalerView) -> int:
        used = min(seen.used, float(seen.ready))
        ratio = used / (max(1, seen.ready) * target)
        if abs(ratio - 1) <= scaling.TOLERANCE:
            return seen.replicas
        proposed = math.ceil(used / target - 1e-9)
        if ratio > 1:
            proposed = max(proposed, seen.replicas)
        return min(max(proposed, replicas.least), replicas.most)

    return wanted


def equal_cpu_target(simulated: Callable[[Wanted], Simulated], replicas: ReplicaRange, mean: float) -> float:
    """The CPU share at which Kubernetes' rule takes as many replicas on average, or a few more."""
    low, high = 0.01, 1.0
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if simulated(by_cpu(middle, replicas)).replicas > mean else (low, middle)
    return low
