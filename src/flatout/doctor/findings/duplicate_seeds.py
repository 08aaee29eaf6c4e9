"""All workers draw the same random numbers or read the same samples, so their work is duplicated."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding
from flatout.doctor.seen import Fetched, ScriptLoader


def look(case: Case) -> Iterator[Finding]:
    for number, loader in enumerate(case.seen.loaders):
        told = {one.worker: one for one in case.seen.fetched if one.loader == number}
        if len(told) < 2 or not (what := _repeats(loader, list(told.values()))):
            continue
        workers = len(told)
        yield Finding(
            "duplicate_seeds",
            case.step_ms * (1 - 1 / workers),
            loader.made or loader.where,
            f"The {workers} workers of {loader.dataset} {what[0]}",
            what[1],
            what[2],
            gain=1.0,
            about=WRONG,
        )
        return


def _repeats(loader: ScriptLoader, told: list[Fetched]) -> tuple[str, str, str] | None:
    if loader.iterable:
        if all(one.first_batch and one.first_batch == told[0].first_batch for one in told):
            return (
                "read the same samples",
                f"the first batches of {len(told)} workers were identical, bit for bit",
                "in __iter__, use torch.utils.data.get_worker_info() to give each of n workers every n-th sample",
            )
        return None
    if all(one.drew and one.random_states and one.random_states == told[0].random_states for one in told):
        return (
            "draw the same random numbers, so augmentations repeat",
            "their random generators had the same state before the first sample"
            + (", including a generator stored in the dataset" if told[0].own_generators else ""),
            "create the generator in worker_init_fn, or seed it with torch.initial_seed() in the worker",
        )
    return None
