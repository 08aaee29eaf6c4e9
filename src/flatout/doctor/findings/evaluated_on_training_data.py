"""Evaluation on rows that the model was trained on: its metrics do not tell how the model does on new ones."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_count
from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding
from flatout.doctor.seen import Pass

_SHARED = 0.01  # of the evaluated rows


def look(case: Case) -> Iterator[Finding]:
    passes = case.seen.passes
    mixed = [one for one in passes if one.loader != one.trained and one.shared > max(_SHARED * one.rows, 0)]
    held_out = [one for one in passes if one.loader != one.trained and one not in mixed]
    same = (
        [] if held_out or mixed else [one for one in passes if one.loader == one.trained]
    )  # beside others it is the training's own score
    for one in [*mixed, *same][:1]:
        yield Finding(
            "evaluated_on_training_data",
            case.step_ms,
            one.where,
            "The evaluation reads rows that the model was trained on, so its metrics are too good",
            _evidence(one),
            "split the data once, without overlap, and give the evaluation a loader of its own",
            gain=1.0,
            about=WRONG,
        )


def _evidence(one: Pass) -> str:
    if one.loader == one.trained:
        return "it iterates over the DataLoader that the training reads, and no other data is evaluated"
    return f"{show_count(one.shared)} of {show_count(one.rows)} evaluated rows are in the training's data, too"
