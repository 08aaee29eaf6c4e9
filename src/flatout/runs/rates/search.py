"""The whole search: how long it may take, the range test, the short trainings, and the reason in words."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from flatout.base.units import parse_seconds, show_seconds
from flatout.engine.job import Job
from flatout.engine.progress import BudgetMeter, budget_of
from flatout.engine.settings import Settings
from flatout.machine.meters import Meters
from flatout.measure.time_limit import TimeLimit
from flatout.runs.rates.found import FoundRate, TriedRate
from flatout.runs.rates.narrowing import Narrowed, Narrowing
from flatout.runs.rates.range_test import SEEDS, RangeTest, curve_of, has_diverged, rate_of, read_range
from flatout.runs.rates.short_runs import ShortRuns

LIMIT = "30 s"
_FEWEST, _MOST = 30, 100  # steps of a range test
_TIME_OF_TESTS = 0.2  # of the limit
_TIMED_STEPS = 6
_UNKNOWN_STEPS = 1000  # of a budget whose length is not known
Say = Callable[[str], None]


def search_rate(
    job: Job, settings: Settings, cache: Path | None, *, limit: str = LIMIT, say: Say = lambda line: None
) -> FoundRate:
    """The job's model, data and random state stay as they are."""
    limit_s = parse_seconds(limit)
    runs = ShortRuns(job, settings, cache)
    try:
        return _searched(runs, job, TimeLimit(limit_s), say)
    finally:
        runs.close()


def _searched(runs: ShortRuns, job: Job, time_limit: TimeLimit, say: Say) -> FoundRate:
    step_s = _step_seconds(runs, job.seed)
    total = _total_steps(job, step_s)
    steps = int(min(_MOST, max(_FEWEST, _TIME_OF_TESTS * time_limit.limit_s / (SEEDS * step_s))))
    least_s = SEEDS * steps * step_s
    say(
        f"learning rate: a step takes {show_seconds(step_s)}; searching for about "
        f"{show_seconds(max(time_limit.limit_s, least_s))} at most"
    )
    test = _range_test(runs, job.seed, steps)
    narrowed = None
    if test.steepest is not None:
        narrowing = Narrowing(
            lambda rate, length, seed: runs.whole(rate, length, job.seed + seed, total),
            total,
            lambda: time_limit.left_s,
            time_limit.spent_s / max(1, runs.steps_done),
        )
        narrowed = narrowing.narrow(min(test.steepest, test.bottom / 2))
        if narrowed is not None and runs.has_held_out and not _has_learned(narrowed, runs, job.seed, total):
            test, narrowed = replace(test, steepest=None, why_none="flat"), None
    return _found(test, narrowed, runs, total, time_limit.spent_s)


def _has_learned(narrowed: Narrowed, runs: ShortRuns, seed: int, total: int) -> bool:
    """Better than the weights that all began with; what a range test took for a fall may be noise."""
    untouched = runs.whole(0.0, 1, seed, total).loss
    best = min(one.loss for one in narrowed.candidates)
    return best < untouched - 1e-4 * abs(untouched)


def _step_seconds(runs: ShortRuns, seed: int) -> float:
    """Without the first steps, which load kernels. At a rate that changes nothing."""
    runs.train(lambda number: rate_of(0, 2), _TIMED_STEPS // 2, seed)
    began_s = time.perf_counter()
    runs.train(lambda number: rate_of(0, 2), _TIMED_STEPS, seed)
    return (time.perf_counter() - began_s) / _TIMED_STEPS


def _total_steps(job: Job, step_s: float) -> int:
    budget: BudgetMeter = budget_of(job, Meters(torch.device("cpu")))
    if budget.total_steps is not None:
        return budget.total_steps
    if budget.budget.unit == "seconds":
        return max(1, round(budget.budget.amount / step_s))
    return _UNKNOWN_STEPS


def _range_test(runs: ShortRuns, seed: int, steps: int) -> RangeTest:
    curves = []
    for number in range(SEEDS):
        losses, _ = runs.train(
            lambda step: rate_of(step, steps), steps, seed + number, stop=lambda losses: has_diverged(losses, steps)
        )
        curves.append(curve_of(losses, steps))
    return read_range(curves)


def _found(test: RangeTest, narrowed: Narrowed | None, runs: ShortRuns, total: int, seconds: float) -> FoundRate:
    rate, low, high = None, None, None
    if narrowed is not None:
        rate, low, high = narrowed.rate, narrowed.low, narrowed.high
    elif test.steepest is not None:
        rate, low, high = min(test.steepest, test.high / 2), test.low, min(test.bottom, test.high / 2)
        low, high = min(low, rate), max(high, rate)
    return FoundRate(
        lr=None if rate is None else float(f"{rate:.3g}"),
        low=None if low is None else float(f"{low:.3g}"),
        high=None if high is None else float(f"{high:.3g}"),
        why=_reason(test, narrowed, total),
        steepest=test.steepest,
        rates=test.rates,
        losses=test.losses,
        tests=tuple(curve.losses for curve in test.curves),
        diverged_at=tuple(curve.diverged_at for curve in test.curves),
        tried=tuple(
            TriedRate(one.rate, one.steps, one.seeds, one.loss if math.isfinite(one.loss) else None)
            for one in (narrowed.candidates if narrowed is not None else ())
        ),
        held_out=runs.has_held_out,
        total_steps=total,
        steps=runs.steps_done,
        seconds=seconds,
    )


def _reason(test: RangeTest, narrowed: Narrowed | None, total: int) -> str:
    if test.why_none == "at_once":
        return (
            "the loss is not finite, or grows, from the first steps, at a rate far too low to cause it: look for NaN or very "
            "large values in the data (`flatout data RECIPE`) or in the model's own code"
        )
    if test.why_none == "flat":
        return (
            "the loss does not fall at any rate from 1e-07 to 10, beyond its noise: `flatout overfit RECIPE` says whether the "
            "model can learn one batch, and which part can't; a larger batch has less noise"
        )
    if narrowed is None:
        return (
            "the loss falls fastest there in the range test; there was no time for trainings that tell more: give it more, "
            "--limit '5 min'"
        )
    orders = "" if narrowed.seeds == 1 else f", over {narrowed.seeds} orders of rows"
    if narrowed.kind == "plateau":
        return f"the middle of many rates that end within 2% of the best after {narrowed.steps} of {total} steps"
    if narrowed.kind == "best":
        return f"lowest loss after all {total} steps{orders}"
    return (
        f"lowest loss after {narrowed.steps} of {total} steps{orders}; lowered a little for the rest, as longer trainings need "
        "lower rates"
    )
