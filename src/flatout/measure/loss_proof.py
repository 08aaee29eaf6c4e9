"""Proof by losses: compares a candidate's losses with the baseline's on the same data, with more steps if noise is too large.

The result is `PairedCheck` as a mapping: `passed`, `why`, and the figures if there were enough steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from flatout.measure.paired import MIN_STEPS, NOT_ENOUGH, check_losses

LossVerdict = Mapping[str, Any]


def compare_losses(baseline: Sequence[Sequence[float]], losses: Sequence[float], part_steps: int = 0) -> dict[str, Any]:
    """`baseline`: the losses of its repeats. Compares as many steps as all runs have.

    Losses of several parts of `part_steps` each, all started anew, are checked twice: part by part, as the parts are
    independent, and step by step, because all parts may drift at their ends.
    """
    n = min(len(losses), *(len(one) for one in baseline))
    if n < MIN_STEPS:
        return {"passed": False, "why": f"{NOT_ENOUGH}: {n} paired steps, at least {MIN_STEPS} are needed"}
    orders = [list(range(n))]
    if part_steps:
        orders.append([place for step in range(part_steps) for place in range(step, n, part_steps)])
    looks = [check_losses([[one[at] for at in order] for one in baseline], [losses[at] for at in order]) for order in orders]
    return asdict(next((look for look in looks if not look.passed), looks[0]))


def is_open(found: LossVerdict) -> bool:
    """Noise hides whether the losses differ; more steps may show it."""
    return not found["passed"] and str(found["why"]).startswith(NOT_ENOUGH)


def with_more_steps(
    found: LossVerdict,
    steps: int,
    longer: Callable[[int], LossVerdict | None],
    *,
    ample: float,
    fits: Callable[[int], bool],
    in_parts_of: int = 1,
) -> LossVerdict:
    """`found` after `steps`; if noise left it open, the result of as many steps as needed.

    `ample`: factor on the steps that the noise requires, which are an estimate. `fits`: is there time for so many steps?
    `longer` returns None if they can't be run; then the earlier result stands. Only the noise decides whether to continue,
    never the difference seen: else each extra look would raise the chance of a false pass.
    """
    while is_open(found) and found.get("figures"):
        wanted = in_parts_of * ceil(ample * found["figures"]["steps_needed"] / in_parts_of)
        if wanted <= steps or not fits(wanted):
            break
        more = longer(wanted)
        if more is None or "figures" not in more:
            break
        found, steps = more, wanted
    return found
