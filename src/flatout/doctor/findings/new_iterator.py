"""A new iterator of the loader for each step, which shuffles again and starts its workers again, for one batch."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import DATA
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.seen import ScriptLoader

_OFTEN = 0.3  # per step
_SHORT = 3  # batches; of a loader with fewer a pass is over soon


def is_restarted(case: Case, loader: ScriptLoader | None) -> bool:
    if loader is None or not case.seen.window_steps or (loader.length or _SHORT) < _SHORT:
        return False
    return loader.passes_in_steps >= _OFTEN * case.seen.window_steps and loader.passes_in_steps >= loader.in_steps / 2


def look(case: Case) -> Iterator[Finding]:
    loader = case.training_loader
    if loader is None or not is_restarted(case, loader):
        return
    wait_ms = case.rows[DATA]
    workers = f", and {loader.workers} workers start" if loader.workers else ""
    yield Finding(
        "new_iterator",
        0.95 * wait_ms,
        loader.where,
        f"Each step makes a new iterator of the DataLoader: it is shuffled again{workers}, for one batch",
        f"{loader.passes_in_steps} iterators in {case.seen.window_steps} steps; "
        f"a step waits {show_seconds(wait_ms / 1e3)} for data",
        "keep the iterator: for batch in loader, or next(batches) and iter(loader) only when it is used up",
        short="one iterator",
    )
