"""Evaluations take longer than training."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import EVALUATION
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_WORTH = 0.5  # of the run
_LEFT = 0.1  # of the time, with a tenth of the evaluations


def look(case: Case) -> Iterator[Finding]:
    spent_ms, periods = case.rows[EVALUATION], case.seen.evaluations
    if len(periods) < 3 or case.share(spent_ms) < _WORTH:  # fewer: one per epoch of a short run
        return
    if any(period.gradient for period in periods):
        return  # grad_in_eval covers this
    spent_s = sum(period.seconds for period in periods)
    yield Finding(
        "frequent_evaluation",
        (1 - _LEFT) * spent_ms,
        periods[-1].where,
        "Evaluations take longer than training",
        f"{len(periods)} evaluations in {case.seen.steps} steps, {show_seconds(spent_s / len(periods))} each",
        "evaluate less often, or a part of the validation data in between",
        short="fewer evaluations",
    )
