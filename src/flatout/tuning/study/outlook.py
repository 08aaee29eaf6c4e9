"""What more search may still bring: from how much the best score depends on the number of trials so far."""

from __future__ import annotations

import math
from collections.abc import Sequence


def expected_best(scores: Sequence[float], draws: int) -> float:
    """Of the best of so many of these scores, drawn without replacement; higher is better."""
    ordered = sorted(scores)
    n = len(ordered)
    total, share = 0.0, 1.0  # share: probability that none of the higher ones was drawn
    for place in range(n, 0, -1):
        if place < draws:
            break
        is_best = share * draws / place
        total += ordered[place - 1] * is_best
        share -= is_best
    return total


def expected_gain(scores: Sequence[float], higher_is_better: bool, more: float) -> float | None:
    """Of `more` times as many trials again. The last doubling's gain, for each doubling to come, halved each time; None: too
    few trials to say."""
    if len(scores) < 8:
        return None
    signed = [score if higher_is_better else -score for score in scores]
    last = expected_best(signed, len(signed)) - expected_best(signed, len(signed) // 2)
    doublings = math.log2(1 + more)
    return last * (1.0 - math.exp2(-doublings))
