"""Workers that end with each pass over the data: the first batch of the next one waits until new ones have started."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from flatout.base.units import show_seconds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding


def look(case: Case) -> Iterator[Finding]:
    loader = case.training_loader
    if loader is None or not loader.workers or loader.persistent or not loader.length or not loader.firsts_s:
        return
    if loader.told_epoch:
        return  # workers that stay would not hear of it
    if loader.workers > max(case.seen.cores, 2):
        return  # too many of them, which says it all
    # a batch takes its time whoever reads it; the rest of the first wait is processes that start, and import what they need
    first_s = max(median(loader.firsts_s) - case.fetch_ms(loader) / 1e3, 0.0)
    start_s, end_s = median(loader.starts_s) + first_s, median(loader.ends_s or [0.0])
    pass_s = start_s + end_s
    cost_ms = 1e3 * pass_s / max(loader.length / case.batches_per_step(loader), 1)
    again = f"{len(loader.starts_s)} passes were seen" if len(loader.starts_s) > 1 else "and so again for each further pass"
    method = f" by {loader.context}" if loader.context else ""
    yield Finding(
        "restarted_workers",
        cost_ms,
        loader.made or loader.where,
        f"The DataLoader's {loader.workers} workers are started anew{method} for each pass over the data",
        f"{show_seconds(start_s)} until the first batch was there and {show_seconds(end_s)} to end them, for a pass of "
        f"{loader.length} batches; {again}",
        "DataLoader(..., persistent_workers=True), if nothing of the dataset is set anew between passes",
        short="persistent workers",
        gain=1 + case.share(cost_ms),  # between passes, and so on top of a step
    )
