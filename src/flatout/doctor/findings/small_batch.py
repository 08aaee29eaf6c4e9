"""So few samples at a time that the machine is busier with the calls than with the samples."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.account import OPTIMIZER
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_SMALL, _USUAL = 16, 128
_WORTH = 0.3


def look(case: Case) -> Iterator[Finding]:
    calls = [call for call in case.training_calls if call.batch and call.training]
    if not calls:
        return
    call = max(calls, key=lambda one: one.seconds)
    fixed_ms = case.rows[kinds.LAUNCH] + case.rows[OPTIMIZER]  # a step of any size would take it
    if not 0 < call.batch <= _SMALL or case.share(fixed_ms) < _WORTH:
        return
    yield Finding(
        "small_batch",
        fixed_ms * (1 - call.batch / _USUAL),
        call.where,
        f"A batch of {call.batch} is too small for this machine",
        f"{show_seconds(fixed_ms / 1e3)} of a step are the same for any batch: calling operators, and the update",
        "a larger batch, with the learning rate that belongs to it; that changes the training, so it is yours to decide"
        + (". torch.compile helps without it" if case.on_device else ""),
        short="a larger batch",
    )
