"""The optimizer goes over the weights many times in small pieces, and one kernel could do it."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_count, show_seconds
from flatout.doctor.account import OPTIMIZER
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_LEFT = 0.35  # of the time, with the fused kernel


def look(case: Case) -> Iterator[Finding]:
    optimizer = case.optimizer
    if optimizer is None or optimizer.fused or not optimizer.can_fuse:
        return
    spent_ms = case.rows[OPTIMIZER]
    yield Finding(
        "unfused_optimizer",
        spent_ms * (1 - _LEFT),
        optimizer.made or optimizer.stepped,
        f"{optimizer.kind} updates the weights in many small operations; a fused kernel exists",
        f"{show_seconds(spent_ms / 1e3)} a step for {optimizer.tensors} tensors ({show_count(optimizer.elements)} weights)",
        f"{optimizer.kind}(..., fused=True)",
        short="fused optimizer",
    )
