"""A share's confidence sequence: intervals that hold at all times together.

The e-value of a share p after n requests with k hits is the likelihood under a Beta mixture over that under p (Robbins 1970;
Howard, Ramdas, McAuliffe and Sekhon 2021, who call it the beta-binomial mixture). The interval has the p whose e-value was
below 1/alpha.
"""

from __future__ import annotations

import math

_STEPS = 60
HALVES = (0.5, 0.5)  # the Beta that is nearly as good for every share


def log_e_of_share(hits: float, n: float, share: float, beta: tuple[float, float] = HALVES) -> float:
    """Evidence against `share` being the true one."""
    a, b = beta
    likelihood = 0.0
    for count, chance in ((hits, share), (n - hits, 1 - share)):
        if count > 0:
            if chance <= 0:
                return math.inf
            likelihood += count * math.log(chance)
    return _log_beta(a + hits, b + n - hits) - _log_beta(a, b) - likelihood


def share_interval(hits: float, n: float, alpha: float = 0.05) -> tuple[float, float]:
    """All shares that are not ruled out; with an error probability of alpha over all times together."""
    if n <= 0:
        return 0.0, 1.0
    threshold, middle = math.log(1 / alpha), hits / n
    return _edge(hits, n, middle, 0.0, threshold), _edge(hits, n, middle, 1.0, threshold)


def _edge(hits: float, n: float, inside: float, outside: float, threshold: float) -> float:
    if log_e_of_share(hits, n, outside) < threshold:
        return outside
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        if log_e_of_share(hits, n, middle) < threshold:
            inside = middle
        else:
            outside = middle
    return outside


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
