"""Gradients that are cleared before the optimizer's step, or never."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding


def look(case: Case) -> Iterator[Finding]:
    seen = case.seen.look
    if seen is None or not seen.updates:
        return
    if len(seen.without_gradient) == seen.updates:
        yield Finding(
            "stepping_without_gradients",
            case.step_ms,
            _most(seen.without_gradient),
            "The optimizer steps without gradients, so the weights never change",
            f"in all of {seen.updates} observed steps every gradient was missing or zero, although there was a backward pass",
            "call zero_grad() after optimizer.step() or before backward(), not between the two",
            gain=1.0,
            about=WRONG,
        )
    elif seen.kept_gradients:
        yield Finding(
            "gradients_never_cleared",
            case.step_ms,
            _most(seen.kept_gradients),
            "Gradients are never cleared: those of all steps so far add up",
            "the optimizer's gradients were not empty before any backward pass since its last step",
            "call zero_grad() of this optimizer after its step",
            gain=1.0,
            about=WRONG,
        )


def _most(lines: Sequence[str]) -> str:
    return Counter(lines).most_common(1)[0][0]
