"""DataLoader workers end with each epoch: the first batch of the next epoch waits for new workers."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from flatout.base.units import show_seconds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.findings.new_iterator import is_restarted


def look(case: Case) -> Iterator[Finding]:
    loader = case.training_loader
    if loader is None or not loader.workers or loader.persistent or not loader.length or not loader.firsts_s:
        return
    if is_restarted(case, loader):
        return  # new_iterator covers this
    if loader.told_epoch:
        return  # persistent workers would not see the new epoch
    if loader.workers > max(case.seen.cores, 2):
        return  # too_many_workers covers this
    # the first wait beyond the time to read a batch is the time to start processes and import modules
    first_s = max(median(loader.firsts_s) - case.fetch_ms(loader) / 1e3, 0.0)
    start_s, end_s = median(loader.starts_s) + first_s, median(loader.ends_s or [0.0])
    pass_s = start_s + end_s
    cost_ms = 1e3 * pass_s / max(loader.length / case.batches_per_step(loader), 1)
    again = f"{len(loader.starts_s)} epochs observed" if len(loader.starts_s) > 1 else "the same for each further epoch"
    method = f" ({loader.context})" if loader.context else ""
    yield Finding(
        "restarted_workers",
        cost_ms,
        loader.made or loader.where,
        f"The DataLoader's {loader.workers} workers are restarted{method} for each epoch",
        f"{show_seconds(start_s)} until the first batch and {show_seconds(end_s)} to stop the workers, per epoch of "
        f"{loader.length} batches; {again}",
        "DataLoader(..., persistent_workers=True), unless the script changes the dataset between epochs",
        short="persistent workers",
        gain=1 + case.share(cost_ms),  # between epochs, so in addition to the steps
    )
