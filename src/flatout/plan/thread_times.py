"""Chooses the number of threads for this run: times whole steps of a copy of the model with 1, 2, 4, ... threads, for a moment.

Measured anew for each run, because it depends on what other processes do. A run that is resumed keeps the number in its plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flatout.data.source import Batch
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.others_work import CpuUse, OthersWork, nothing_else_runs
from flatout.machine.threads import (
    ThreadTimes,
    counts_to_try,
    cpu_threads,
    fixed_from_outside,
    most_threads,
    time_counts,
)
from flatout.models.dataless import is_dataless
from flatout.plan.plan import Choice, Plan
from flatout.plan.trials.arm import Arm
from flatout.recipe.build import few_rows

_SHORT_S = 1.0  # a run this short on an idle machine gains less than measuring costs
_SHARE, _LEAST_S, _MOST_S, _UNKNOWN_S = 0.02, 0.05, 1.0, 0.2  # of the run, for measuring
_LARGE_BYTES = 2 * 10**9  # a second copy of a larger model may not fit
_MANY = 16  # of larger machines only the larger counts are tried, besides 1


@dataclass(frozen=True)
class ChosenThreads:
    """`gain`: times as fast as with the largest number that may be used; None: not measured."""

    count: int
    why: str
    gain: float | None = None
    is_pinned: bool = False


def choose_threads(job: Job, step_s: float | None, expected_s: float | None, since: OthersWork) -> ChosenThreads:
    """`step_s` and `expected_s`: predicted for a step and for the run; None: unknown. `since`: counts others' work already."""
    most, started = most_threads(), torch.get_num_threads()
    if fixed := fixed_from_outside():
        return ChosenThreads(started, f"pinned by you: {fixed}", is_pinned=True)
    if most == 1:
        few = "the only core that may be used here" if started > 1 else "torch was told to use one, or has one core"
        return ChosenThreads(1, few)
    quota = f"; torch would start {started}, but only {most} cores may be used here" if most < started else ""
    if expected_s is not None and expected_s < _SHORT_S and nothing_else_runs():
        return ChosenThreads(most, f"all: this run is too short to measure which number is best{quota}")
    limit_s = _UNKNOWN_S if expected_s is None else min(_MOST_S, max(_LEAST_S, _SHARE * expected_s))
    times, why_not = _times(job, step_s, limit_s, counts_to_try(most))
    used = since.use()
    shared = f"; other processes use {used.in_words()}" if used is not None and used.is_busy else ""
    if times is None:
        count = most if used is None else _left_free(used, most)
        return ChosenThreads(count, f"{why_not}, so one for each free core{shared}{quota}")
    count = times.fastest(busy=bool(shared))
    if count == most:
        others = ", ".join(f"{times.gain(most, fewer):.2f}x as fast as with {fewer}" for fewer in sorted(times.step_s)[-2:-1])
        return ChosenThreads(most, f"steps are {others}{shared}{quota}", 1.0)
    gain = times.gain(count)
    return ChosenThreads(count, f"steps are {gain:.{1 if gain > 3 else 2}f}x as fast as with {most}{shared}{quota}", gain)


def with_pinned_threads(plan: Plan, pins: Mapping[str, Any]) -> Plan:
    """For a run that is resumed: its plan, with the number of threads that is asked for now."""
    count = pins.get("threads", plan.settings.threads)
    if count == plan.settings.threads:
        return plan
    pinned = Choice("threads", count, f"pinned by you at the resume; {plan.settings.threads} before", "pinned")
    choices = (*(choice for choice in plan.choices if choice.name != "threads"), pinned)
    return replace(plan, settings=replace(plan.settings, threads=count), choices=choices)


def _left_free(used: CpuUse, most: int) -> int:
    return max(1, min(most, round(used.cores - used.others))) if used.is_busy else most


def _times(job: Job, step_s: float | None, limit_s: float, counts: Sequence[int]) -> tuple[ThreadTimes | None, str]:
    """None, with the reason, if steps can't be timed."""
    if is_dataless(job.model):
        return None, "the model is too large to time its steps here"
    if sum(one.numel() * one.element_size() for one in job.model.parameters()) > _LARGE_BYTES:
        return None, "the model is too large to copy it for timing"
    if len(counts) > 2 and counts[-1] > _MANY:
        counts = (1, *counts[-4:])
    bearable_s = limit_s / (4 * len(counts))
    rows = job.batch if not step_s or step_s < bearable_s else max(2, int(job.batch * bearable_s / step_s))
    try:
        arm = Arm(job, job.model, Settings(device="cpu"), [_batch(job, rows)], quiet=False)
        with arm.surroundings(job.seed), cpu_threads(0):
            found = time_counts(lambda: arm.advance(job.lr), counts, limit_s)
            arm.drain()
    except Exception as error:  # the run itself reports what is wrong with the model
        return None, f"steps can't be timed ({type(error).__name__})"
    return found, ""


def _batch(job: Job, rows: int) -> Batch:
    """A few real rows, again and again: reading a whole batch of files could take longer than the rest of planning."""
    few = few_rows(job.data, torch.device("cpu"))
    count = len(next(iter(few.values())))
    return {name: column.repeat(-(-rows // count), *[1] * (column.dim() - 1))[:rows] for name, column in few.items()}
