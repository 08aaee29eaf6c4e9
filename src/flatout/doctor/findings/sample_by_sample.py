"""Short steps wait for batches that are put together of single samples, and a worker would take as long to hand them over."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import DATA
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.findings.no_workers import workers_may_help

_LEFT = 0.35  # of the time that the rows of a tensor take one by one, where they are indexed at once: 0.29 to 0.39 on a Xeon


def look(case: Case) -> Iterator[Finding]:
    loader = case.training_loader
    if loader is None or loader.workers or not loader.batched or workers_may_help(case, loader):
        return
    wait_ms = case.rows[DATA]
    batches = case.batches_per_step(loader)
    remedy = "index tensors by whole batches: sampler=BatchSampler(RandomSampler(data), ...), batch_size=None"
    if loader.iterable:
        remedy = "let it yield whole batches of tensors, and set batch_size=None"
    yield Finding(
        "sample_by_sample",
        (1 - _LEFT) * wait_ms,
        loader.made or loader.where,
        f"Each batch is put together of {f'{loader.batch} single' if loader.batch else 'single'} samples while the step waits",
        f"{show_seconds(wait_ms / 1e3)} a step for {loader.dataset}, {case.share(wait_ms):.0%} of it; "
        f"{'one batch' if batches == 1 else f'{batches:.2g} batches'} a step, too short for a worker to pay",
        remedy,
        short="whole batches",
    )
