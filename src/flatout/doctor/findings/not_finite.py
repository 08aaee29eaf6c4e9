"""A loss that is NaN or infinite in each step: the weights are lost."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding


def look(case: Case) -> Iterator[Finding]:
    seen = case.seen.look
    if seen is None or not seen.steps or len(seen.not_finite) < seen.steps:
        return
    yield Finding(
        "not_finite",
        case.step_ms,
        seen.not_finite[0],
        "The loss is NaN or infinite",
        f"it was in all of {seen.steps} steps that were looked at closely, soon after the start",
        "look for logarithms and divisions of zero, and for NaN in the data: torch.isfinite(x).all(); "
        "torch.autograd.set_detect_anomaly(True) names the operator",
        gain=1.0,
        about=WRONG,
    )
