"""The step waits while one process reads, and there are cores that could read ahead."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import DATA
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_HANDING_OVER_MS = 1.0  # what it takes to get a batch from a worker


def look(case: Case) -> Iterator[Finding]:
    loader = case.training_loader
    if loader is None or loader.workers or case.seen.cores < 2:
        return
    batches = max(loader.in_steps, 1) / max(case.seen.window_steps, 1)
    wait_ms = case.rows[DATA]
    if wait_ms < 2 * _HANDING_OVER_MS * batches:
        return
    workers = min(case.seen.cores - (0 if case.on_device else 1), 8)
    rest_ms = case.train_ms - wait_ms
    at_best_ms = max(rest_ms, wait_ms / workers)
    if not case.on_device:  # the cores are not free: what a worker takes, the step does not get
        at_best_ms = max(at_best_ms, (rest_ms * min(case.seen.threads, case.seen.cores) + wait_ms) / case.seen.cores)
    cost = case.train_ms - at_best_ms - _HANDING_OVER_MS * batches
    yield Finding(
        "no_workers",
        cost,
        loader.made or loader.where,
        "The DataLoader has no workers, so each batch is read while the step waits",
        f"{show_seconds(wait_ms / 1e3)} a step for {loader.dataset}, {case.share(wait_ms):.0%} of it; "
        f"{'one batch' if batches == 1 else f'{batches:.2g} batches'} a step, {case.seen.cores} cores",
        f"DataLoader(..., num_workers={workers}, persistent_workers=True); data that fits in memory is faster still as tensors",
        short=f"workers={workers}",
    )
