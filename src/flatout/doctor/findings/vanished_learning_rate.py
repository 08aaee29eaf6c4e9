"""A learning rate that a schedule has brought down to nothing long before the end: the steps after that change no weight."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_count
from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding

_SHARE = 0.2  # of the steps; a schedule may end near zero
_FEWEST = 20


def look(case: Case) -> Iterator[Finding]:
    for optimizer in case.seen.optimizers:
        if optimizer.tiny_rates < max(_SHARE * optimizer.steps, _FEWEST):
            continue
        yield Finding(
            "vanished_learning_rate",
            case.step_ms,
            case.seen.scheduled or optimizer.stepped,
            "The schedule brings the learning rate down to nothing long before the training ends",
            f"{show_count(optimizer.tiny_rates)} of {show_count(optimizer.steps)} steps had less than 1e-5 of the "
            f"highest rate, {optimizer.highest_rate:g}",
            "if the schedule is meant in epochs, call scheduler.step() once per epoch, not per batch",
            gain=1.0,
            about=WRONG,
        )
        return
