"""Steps wait for data because too few workers read, though cores are free."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from flatout.base.units import show_seconds
from flatout.doctor.account import DATA
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.seen import ScriptLoader

_MOST = 8
_LEAST = 0.01  # of a step: less waiting is not reported


def workers_may_help(case: Case, loader: ScriptLoader) -> bool:
    if case.seen.cores < 2 or case.share(case.rows[DATA]) < _LEAST:
        return False
    return case.rows[DATA] >= 2 * hand_over_ms(case, loader) * case.batches_per_step(loader)


def hand_over_ms(case: Case, loader: ScriptLoader) -> float:
    """Time to transfer a batch from a worker."""
    return 1e3 * case.gains.hand_over_s(loader.batch_bytes)


def look(case: Case) -> Iterator[Finding]:
    loader = case.training_loader
    if loader is None or not workers_may_help(case, loader):
        return
    batches = case.batches_per_step(loader)
    wait_ms = case.rows[DATA]
    rest_ms = case.train_ms - wait_ms
    reading_ms = batches * case.fetch_ms(loader) if loader.workers else wait_ms
    workers = min(case.seen.cores - (0 if case.on_device else 1), _MOST)
    if loader.workers:  # as many as keep up with the rest of a step, plus one
        if reading_ms < loader.workers * rest_ms:  # the workers keep up: the step waits for something else
            return
        workers = min(workers, ceil(reading_ms / max(rest_ms, hand_over_ms(case, loader))) + 1)
    if workers <= loader.workers:
        return
    at_best_ms = max(rest_ms, reading_ms / workers)
    if not case.on_device:  # workers and training share the cores
        at_best_ms = max(at_best_ms, (rest_ms * min(case.seen.threads, case.seen.cores) + reading_ms) / case.seen.cores)
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
