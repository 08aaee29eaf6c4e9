"""Steps wait for data because too few workers read, though cores are free."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from flatout.base.units import show_seconds
from flatout.doctor.account import DATA
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.seen import ScriptLoader

_USUAL, _MOST = 8, 32
_LEAST = 0.01  # of a step: less waiting is not reported


def workers_may_help(case: Case, loader: ScriptLoader) -> bool:
    if case.seen.cores < 2 or case.share(case.rows[DATA]) < _LEAST:
        return False
    return case.rows[DATA] >= 2 * hand_over_ms(case, loader) * case.batches_per_step(loader)


def hand_over_ms(case: Case, loader: ScriptLoader) -> float:
    """Time to transfer a batch from a worker."""
    return 1e3 * case.gains.hand_over_s(loader.batch_bytes)


def reading_ms(case: Case, loader: ScriptLoader) -> float:
    """Time of one process to read what a step needs."""
    return case.batches_per_step(loader) * case.fetch_ms(loader) if loader.workers else case.rows[DATA]


def workers_that_keep_up(case: Case, loader: ScriptLoader, faster: float = 1.0) -> int:
    """With the rest of a step, which may be so many times as fast later, plus one; at most one for each core, and 32."""
    rest_ms = max((case.train_ms - case.rows[DATA]) / faster, hand_over_ms(case, loader))
    return min(ceil(reading_ms(case, loader) / max(rest_ms, 1e-6)) + 1, _free_cores(case), _MOST)


def usual_workers(case: Case) -> int:
    return min(_free_cores(case), _USUAL)


def _free_cores(case: Case) -> int:
    return case.seen.cores - (0 if case.on_device else 1)


def look(case: Case) -> Iterator[Finding]:
    loader = case.training_loader
    if loader is None or not workers_may_help(case, loader):
        return
    batches = case.batches_per_step(loader)
    wait_ms = case.rows[DATA]
    rest_ms = case.train_ms - wait_ms
    reads_ms, workers = reading_ms(case, loader), workers_that_keep_up(case, loader)
    if not loader.workers:
        workers = max(workers, usual_workers(case))
    elif reads_ms < loader.workers * rest_ms:  # the workers keep up: the step waits for something else
        return
    if workers <= loader.workers:
        return
    at_best_ms = max(rest_ms, reads_ms / workers)
    if not case.on_device:  # workers and training share the cores
        at_best_ms = max(at_best_ms, (rest_ms * min(case.seen.threads, case.seen.cores) + reads_ms) / case.seen.cores)
    few = "no workers" if not loader.workers else "one worker" if loader.workers == 1 else f"{loader.workers} workers"
    slower = "reading is slower than training" if loader.workers else "each step waits while its batch is read"
    yield Finding(
        "no_workers",
        case.train_ms - at_best_ms - hand_over_ms(case, loader) * batches,
        loader.made or loader.where,
        f"The DataLoader has {few}, so {slower}",
        f"a step waits {show_seconds(wait_ms / 1e3)} ({case.share(wait_ms):.0%}) for {loader.dataset}; "
        f"{'one batch' if batches == 1 else f'{batches:.2g} batches'} per step, {case.seen.cores} cores"
        + ("; the dataset caches samples, so later epochs may be faster anyway" if loader.fills else ""),
        f"DataLoader(..., num_workers={workers})"
        + ("" if loader.told_epoch else "; if the data fits in memory and is the same in each epoch, tensors are faster still"),
        short=f"workers={workers}",
    )
