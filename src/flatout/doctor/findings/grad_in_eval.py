"""Evaluation builds an autograd graph that no backward pass uses."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import EVALUATION
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_SAVED = 0.3


def look(case: Case) -> Iterator[Finding]:
    calls = [call for call in case.seen.calls if call.is_in(case.seen.evaluations) and call.gradient]
    if not calls:
        return
    call = max(calls, key=lambda one: one.count)
    spent_ms = case.rows[EVALUATION]
    yield Finding(
        "grad_in_eval",
        spent_ms * _SAVED,
        call.where,
        "Evaluation runs with gradients on, though it has no backward pass",
        f"{call.count} calls of {call.module} with gradients on; evaluation takes {show_seconds(spent_ms / 1e3)} per step",
        "with torch.inference_mode(): around the evaluation, which also needs far less memory then",
        short="inference_mode",
    )
