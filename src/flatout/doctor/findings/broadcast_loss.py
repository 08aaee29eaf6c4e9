"""Predictions of shape (N, 1) and targets of shape (N,): their difference has N x N elements, most of different samples."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding


def look(case: Case) -> Iterator[Finding]:
    if case.seen.look is None:
        return
    for line, (given, target) in list(case.seen.look.broadcast.items())[:1]:
        size = max(given[0], target[0])
        yield Finding(
            "broadcast_loss",
            case.step_ms,
            line,
            "Predictions and targets have different shapes, so each prediction is compared with all targets",
            f"shapes {given} and {target} broadcast to ({size}, {size})",
            "give both the same shape: prediction.squeeze(1), or target.unsqueeze(1)",
            gain=1.0,
            about=WRONG,
        )
