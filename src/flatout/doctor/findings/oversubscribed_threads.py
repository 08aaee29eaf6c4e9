"""More threads than cores: threads wait for each other at the end of every operator."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding


def look(case: Case) -> Iterator[Finding]:
    threads, cores = case.seen.threads, case.seen.cores
    if case.on_device or threads <= cores:
        return
    yield Finding(
        "oversubscribed_threads",
        case.train_ms * (1 - cores / threads),
        case.seen.threads_set,
        f"torch computes with {threads} threads on {cores} cores",
        f"{show_seconds(case.compute_ms / 1e3)} of computing per step; threads without a core make the others wait",
        f"torch.set_num_threads({cores}), or OMP_NUM_THREADS={cores}",
        short=f"{cores} threads",
    )
