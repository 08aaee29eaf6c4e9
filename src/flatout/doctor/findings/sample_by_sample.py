"""Short steps wait for batches collated from single samples; transferring them from a worker would take as long."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import DATA
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.findings.no_workers import workers_may_help

_LEFT = 0.35  # time of indexing a whole batch of a tensor relative to row by row: 0.29 to 0.39 on a Xeon


def look(case: Case) -> Iterator[Finding]:
    loader = case.training_loader
    if loader is None or loader.workers or not loader.batched or workers_may_help(case, loader):
        return
    wait_ms = case.rows[DATA]
    batches = case.batches_per_step(loader)
    remedy = "index tensors by whole batches: sampler=BatchSampler(RandomSampler(data), ...), batch_size=None"
    if loader.iterable:
        remedy = "make the dataset yield whole batches of tensors, and set batch_size=None"
    yield Finding(
        "sample_by_sample",
        (1 - _LEFT) * wait_ms,
        loader.made or loader.where,
        f"Each step waits while its batch is collated from {f'{loader.batch} single' if loader.batch else 'single'} samples",
        f"a step waits {show_seconds(wait_ms / 1e3)} ({case.share(wait_ms):.0%}) for {loader.dataset}; "
        f"{'one batch' if batches == 1 else f'{batches:.2g} batches'} per step; too little time for a worker to pay off",
        remedy,
        short="whole batches",
    )
