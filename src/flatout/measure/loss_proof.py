"""Proof by losses: a candidate's against the baseline's on the same data, with more steps where noise leaves it open.

What is told of it is `PairedCheck` as a mapping: `passed`, `why`, and the figures where there were steps enough for any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from flatout.measure.paired import MIN_STEPS, NOT_ENOUGH, check_losses

LossVerdict = Mapping[str, Any]


def compare_losses(baseline: Sequence[Sequence[float]], losses: Sequence[float], part_steps: int = 0) -> dict[str, Any]:
    """`baseline`: the losses of its repeats. As many steps count as all arms have.

    Losses of several parts of `part_steps` each, which all began anew, are looked at twice: part by part, as these are
    independent of each other, and step by step, where all of them may drift away at their ends.
    """
    n = min(len(losses), *(len(one) for one in baseline))
    if n < MIN_STEPS:
        return {"passed": False, "why": f"{NOT_ENOUGH}: {n} paired steps, {MIN_STEPS} are asked for"}
    orders = [list(range(n))]
    if part_steps:
        orders.append([place for step in range(part_steps) for place in range(step, n, part_steps)])
    looks = [check_losses([[one[at] for at in order] for one in baseline], [losses[at] for at in order]) for order in orders]
    return asdict(next((look for look in looks if not look.passed), looks[0]))


def is_open(found: LossVerdict) -> bool:
    """Noise hides whether they differ: more steps may tell."""
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
    """`found` after `steps`; where that left it open, what as many steps as it takes tell.

    `ample`: how many times the steps that the noise asks for, which is an estimate. `fits`: is there time for so many?
    `longer` returns None where they can't be had; what was found before stands then. Whether to go on is for the noise to
    say, not for the difference that was seen, or chance would get one more look with each.
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
