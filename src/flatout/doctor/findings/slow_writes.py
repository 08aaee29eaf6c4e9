"""Each step writes to a file, or waits until the disk has the data."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import WRITES
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_EVERY = 20


def look(case: Case) -> Iterator[Finding]:
    spent_ms = case.rows[WRITES]
    if not spent_ms:
        return
    synced = case.per_step(case.seen.synced)
    words = f"writing takes {show_seconds(spent_ms / 1e3)} per step"
    if synced:
        words += f"; {synced:.3g} times per step it waits until the disk has the data (fsync)"
    yield Finding(
        "slow_writes",
        spent_ms * (1 - 1 / _EVERY),
        case.places.get(WRITES, ""),
        "Training stops while files are written",
        words,
        f"collect the values and write every {_EVERY} steps, or from a thread" + (", without fsync" if synced else ""),
        short="fewer writes",
    )
