"""The targets of a language model are its inputs, not shifted by one: it learns to copy, and its loss means nothing."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding


def look(case: Case) -> Iterator[Finding]:
    if case.seen.look is None or len(case.seen.look.copied) < max(case.seen.look.steps, 1):
        return
    yield Finding(
        "copied_targets",
        case.step_ms,
        case.seen.look.copied[0],
        "The targets are the model's own inputs: it learns to copy the token that it sees",
        "attention is causal, so each position sees its own token; all targets equal the inputs at the same position",
        "shift the targets by one: inputs tokens[:, :-1], targets tokens[:, 1:]",
        gain=1.0,
        about=WRONG,
    )
