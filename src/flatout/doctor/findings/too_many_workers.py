"""More workers than cores compete for cores and take long to start."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import DATA
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding


def look(case: Case) -> Iterator[Finding]:
    loader = case.training_loader
    cores = case.seen.cores
    if loader is None or loader.workers <= max(cores, 2):
        return
    starts_ms = 1e3 * sum(loader.starts_s) / max(case.seen.steps, 1)
    wait_ms = max(case.rows[DATA], 1e3 * loader.wait_s / max(len(loader.waits_s), 1))
    crowded_ms = min(case.fetch_ms(loader), case.compute_ms) / 2  # the training process competes for a core, too
    passes = len(loader.starts_s)
    again = "" if loader.persistent or passes < 2 else f", again for each of {passes} epochs"
    yield Finding(
        "too_many_workers",
        min(starts_ms + wait_ms + (0 if case.on_device else crowded_ms), 0.9 * case.step_ms + starts_ms),
        loader.made or loader.where,
        f"{loader.workers} workers share {cores} cores",
        f"starting them took {show_seconds(sum(loader.starts_s))}{again}; a step waits {show_seconds(wait_ms / 1e3)} for data"
        + (", including the wait for the workers' start" if wait_ms > case.rows[DATA] else ""),
        f"num_workers={max(cores - 1, 1)}" + (", persistent_workers=True" if again and not loader.told_epoch else ""),
        short=f"workers={max(cores - 1, 1)}",
    )
