"""nn.DataParallel copies the model to each device in every step and drives them all from one thread."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor import kinds
from flatout.doctor.account import PYTHON
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding


def look(case: Case) -> Iterator[Finding]:
    calls = [call for call in case.training_calls if call.parallel]
    if not calls:
        return
    spread_ms = sum(case.rows[row] for row in (kinds.LAUNCH, kinds.COPY, kinds.COMMUNICATION, PYTHON))
    yield Finding(
        "data_parallel",
        max(0.7 * spread_ms, 0.02 * case.step_ms),
        calls[0].where,
        "nn.DataParallel copies the model to every device in each step",
        f"one thread drives all devices; its overhead is {case.share(spread_ms):.0%} of a step",
        "use DistributedDataParallel with torchrun, one process per device; on one device use no wrapper",
        short="DistributedDataParallel",
    )
