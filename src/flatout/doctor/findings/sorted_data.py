"""Training data that is sorted by class and not shuffled: each batch has one class, which the model forgets with the next."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding


def look(case: Case) -> Iterator[Finding]:
    seen, loader = case.seen.look, case.training_loader
    if seen is None or loader is None or not loader.in_order or not seen.steps or len(seen.one_class) < seen.steps:
        return
    yield Finding(
        "sorted_data",
        case.step_ms,
        loader.made or loader.where,
        "The training data is sorted by class and not shuffled",
        f"the DataLoader reads in the order of the data, and all targets of each of {seen.steps} batches were the same class",
        "DataLoader(..., shuffle=True)",
        gain=1.0,
        about=WRONG,
    )
