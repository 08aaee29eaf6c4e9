"""How many requests of the canary a verdict takes, calculated before any is seen.

The logarithm of an e-value is a sum over requests. Under a given pair of shares its mean and variance per request of the canary
are known, so the number after which it has passed its threshold with a given probability is that of a normal random walk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from flatout.measure.anytime.two_arms import LEAST, ODDS, ShareNull


@dataclass(frozen=True)
class RequestsNeeded:
    """Requests of the canary: on average about `usual`, and `most` with the probability `power`. None: never."""

    usual: int | None
    most: int | None
    power: float


def needed(
    null: ShareNull,
    stable: float,
    canary: float,
    share: float,
    threshold: float,
    power: float = 0.97,
    counted: tuple[float, float] = (1.0, 1.0),
) -> RequestsNeeded:
    """For true shares of hits, a canary that gets this `share` of the requests, and a threshold of the log e-value.

    `counted`: of the requests of both versions, the share that is evidence.
    """
    stable, canary = (min(1 - LEAST, max(LEAST, one)) for one in (stable, canary))
    others = (1 - share) / share * counted[0] / counted[1]  # of the stable version for each of the canary
    best = RequestsNeeded(None, None, power)
    outsides = null.outside(stable)
    for outside, *near in zip(outsides, *null.nearest(others, 1.0, stable, outsides), strict=True):
        mean = variance = 0.0
        for n, true, taken, nearest in ((others, stable, stable, near[0]), (1.0, canary, float(outside), near[1])):
            hit, miss = math.log(taken / float(nearest)), math.log((1 - taken) / (1 - float(nearest)))
            mean += n * (true * hit + (1 - true) * miss)
            variance += n * true * (1 - true) * (hit - miss) ** 2
        if mean <= 0:
            continue
        wanted = threshold + math.log(len(ODDS))
        z = NormalDist().inv_cdf(power)
        root = (z * math.sqrt(variance) + math.sqrt(z * z * variance + 4 * mean * wanted)) / (2 * mean)
        found = RequestsNeeded(math.ceil(wanted / mean / counted[1]), math.ceil(root * root / counted[1]), power)
        if best.most is None or (found.most is not None and found.most < best.most):
            best = found
    return best
