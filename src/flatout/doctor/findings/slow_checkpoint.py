"""Training stops while checkpoints are written."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import CHECKPOINT
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding


def look(case: Case) -> Iterator[Finding]:
    saves = case.seen.checkpoints
    if not saves:
        return
    spent_s = sum(save.seconds for save in saves)
    yield Finding(
        "slow_checkpoint",
        0.9 * case.rows[CHECKPOINT],
        saves[-1].where,
        "Training stops while checkpoints are written",
        f"{len(saves)} checkpoints in {case.seen.steps} steps, {show_seconds(spent_s / len(saves))} each",
        "save less often, or copy to host memory and write from a thread (torch.distributed.checkpoint.async_save)",
        short="fewer checkpoints",
    )
