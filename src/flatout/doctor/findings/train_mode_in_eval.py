"""Evaluation in training mode: with dropout on or batch statistics changing, its metrics are wrong."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import EVALUATION
from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding


def look(case: Case) -> Iterator[Finding]:
    calls = [call for call in case.seen.calls if call.is_in(case.seen.evaluations) and call.training and call.mode_matters]
    if not calls:
        return
    call = max(calls, key=lambda one: one.count)
    spent_ms = case.rows[EVALUATION]
    yield Finding(
        "train_mode_in_eval",
        spent_ms,
        call.where,
        "The model is evaluated in training mode, so its metrics are wrong",
        f"{call.count} calls of {call.module} (which has dropout or batch norm) with training=True; "
        f"evaluation takes {show_seconds(spent_ms / 1e3)} per step",
        "model.eval() before the evaluation and model.train() after it",
        gain=1.0,
        about=WRONG,
    )
