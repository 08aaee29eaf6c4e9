"""The batch is so small that overhead dominates the step."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.account import OPTIMIZER
from flatout.doctor.case import Case
from flatout.doctor.finding import CHANGES, Finding

_SMALL, _USUAL = 16, 128
_WORTH = 0.3


def look(case: Case) -> Iterator[Finding]:
    calls = [call for call in case.training_calls if call.batch and call.training]
    if not calls:
        return
    call = max(calls, key=lambda one: one.seconds)
    fixed_ms = case.rows[kinds.LAUNCH] + case.rows[OPTIMIZER]  # independent of the batch size
    if not 0 < call.batch <= _SMALL or case.share(fixed_ms) < _WORTH:
        return
    yield Finding(
        "small_batch",
        fixed_ms * (1 - call.batch / _USUAL),
        call.where,
        f"A batch of {call.batch} is too small for this machine",
        f"calling operators and the optimizer take {show_seconds(fixed_ms / 1e3)} per step, whatever the batch size",
        "use a larger batch and adjust the learning rate; this changes training, so it is your decision"
        + (". torch.compile helps without a larger batch" if case.on_device else ""),
        short="larger batch",
        about=CHANGES,
    )
