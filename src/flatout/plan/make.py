"""From a recipe to its plan: check the job, measure this machine, choose settings, try them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flatout.base.budget import Budget
from flatout.base.trust import private_cache
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.ceilings import Ceilings
from flatout.machine.device import pick_device
from flatout.machine.gains import GainComparison
from flatout.machine.others_work import OthersWork
from flatout.machine.probe import probe
from flatout.measure.counts import Operation
from flatout.measure.receipt import Receipt
from flatout.measure.recording import Trove
from flatout.plan.choose import choose, choose_in, situation_of
from flatout.plan.knobs.all import KNOBS
from flatout.plan.knobs.knob import Knob
from flatout.plan.layouts.fitting import why_not_here
from flatout.plan.options import LIMIT_S
from flatout.plan.plan import Plan, Prediction
from flatout.plan.situation import Situation
from flatout.plan.step_gains import comparisons_of
from flatout.plan.thread_times import ChosenThreads, choose_threads
from flatout.plan.traces import Traces
from flatout.plan.trial_key import trial_key, versions
from flatout.plan.tried_plan import AskedTrials, Say, tried_plan, tries
from flatout.plan.with_receipt import steps_to_come
from flatout.plan.work import keep_traces, work_of
from flatout.recipe.build import check_job, check_loss_head
from flatout.recipe.schema import Recipe

_SCORED_ROWS, _SMALL_ROW = 256, 4096
_WORTH_TIMING_S = 60.0  # in a run this long, timing its operators pays off


def checked_plan(
    recipe: Recipe,
    job: Job,
    cache: Path | None,
    *,
    limit_s: float = LIMIT_S,
    analyze: bool = False,
    recall: bool = False,
    say: Say = lambda line: None,
) -> tuple[Plan, Receipt | None]:
    """The plan and the receipt of its trials. Errors in the recipe are raised before this machine is measured.

    `limit_s`: time limit for trials, 0 for none. `analyze` also tries settings that this run is too short to try. `recall`
    makes no trials and uses those of earlier runs.
    """
    pins = recipe.pins
    device = pick_device(pins.get("device", "auto"))
    check_job(job, device)
    if limit_s <= 0:
        plan, _ = _chosen(recipe, job, pins, device, cache)
        check_loss_head(job, device, plan.settings.loss_head)
        return plan, None
    trove = Trove(cache, trial_key(recipe, job, device), versions())
    asked = AskedTrials(limit_s, analyze, recall, say)
    with tries(recipe, job, device, cache, limit_s) as live:

        def begin() -> None:
            if trove.kept is None and not recall and device.type != "cpu":  # on a CPU the child would disturb the timing
                live.begin()

        worth_timing_s = 0.0 if analyze else _WORTH_TIMING_S
        plan, ceilings = _chosen(
            recipe, job, pins, device, cache, worth_timing_s=worth_timing_s, when_worth=begin, with_gains=not recall
        )
        check_loss_head(job, device, plan.settings.loss_head)
        return tried_plan(recipe, situation_of(job, pins, ceilings, cache), plan, knobs_of(recipe), trove, live, asked)


def plan_of_share(
    recipe: Recipe,
    pins: Mapping[str, Any],
    job: Job,
    shares: int,
    cache: Path | None,
    *,
    limit_s: float,
    say: Say = lambda line: None,
) -> tuple[Plan, Receipt | None]:
    """The plan for processes that each get one of `shares` equal parts of every batch.

    One process tries settings on one share. Communication is not part of the trials, and no setting that is tried changes it.
    """
    rows = -(-job.batch // shares)
    total = Situation(job, torch.device("cpu"), pins, None, Prediction()).total_steps
    budget = job.budget if total is None else Budget(float(total), "steps")  # fewer rows a step, the same steps
    share, smaller = recipe.with_share(rows, pins), replace(job, batch=rows, budget=budget)
    plan, receipt = checked_plan(share, smaller, cache, limit_s=0.0 if job.data.train.shapes_vary else limit_s, say=say)
    return replace(plan, batch=round(job.rows_per_step)), receipt


def default_plan(recipe: Recipe, job: Job, cache: Path | None, pins: Mapping[str, Any] | None = None) -> Plan:
    """`pins`: instead of the recipe's."""
    pinned = recipe.pins if pins is None else pins
    return _chosen(recipe, job, pinned, pick_device(pinned.get("device", "auto")), cache)[0]


def settings_for_trials(recipe: Recipe, job: Job, cache: Path | None, pins: Mapping[str, Any]) -> Settings:
    """For trainings whose layout is measured anyway. On a CPU, with rows in memory, no setting depends on the speed of this
    machine, and nothing is measured or traced, which would take seconds; elsewhere no operator is timed."""
    device = pick_device(pins.get("device", "auto"))
    if device.type == "cpu" and job.data.train.in_memory and "threads" in pins:
        unmeasured = Prediction(reason="trials are not predicted")
        s = Situation(job, device, pins, None, unmeasured, cache)
        settings = choose_in(s, label_of(recipe, job), knobs_of(recipe)).settings
        return settings if settings.evaluation_batch else replace(settings, evaluation_batch=_rows_to_score(job))
    return _chosen(recipe, job, pins, device, cache, worth_timing_s=math.inf)[0].settings


def _rows_to_score(job: Job) -> int:
    """With less than some hundred rows calling operators takes as long as computing. A few kB a row surely fit the memory.
    0: as many as in training."""
    row_bytes = job.data.train.stored_bytes / max(1, len(job.data.train))
    return _SCORED_ROWS if job.batch < _SCORED_ROWS and row_bytes <= _SMALL_ROW else 0


@dataclass(frozen=True)
class _Wanted:
    """What to measure besides the ceilings, asked for once these are known."""

    operations: Callable[[Ceilings], Iterable[Operation]] = lambda ceilings: ()
    comparisons: Callable[[Ceilings], Iterable[GainComparison]] = lambda ceilings: ()


_NOTHING_MORE = _Wanted()


def ceilings_of(device: torch.device, cache: Path | None, wanted: _Wanted = _NOTHING_MORE) -> Ceilings | None:
    """The measured peak rates of this machine. The first measurement takes a few seconds, then it is stored."""
    return probe(device, cache, quick=True, operations=wanted.operations, comparisons=wanted.comparisons).ceilings


def _chosen(
    recipe: Recipe,
    job: Job,
    pins: Mapping[str, Any],
    device: torch.device,
    cache: Path | None,
    worth_timing_s: float = 0.0,
    when_worth: Callable[[], None] = lambda: None,
    with_gains: bool = False,
) -> tuple[Plan, Ceilings | None]:
    """Chooses settings by the ceilings, times operators (of that step, of the default one, of one in bf16), and chooses again.

    A run shorter than `worth_timing_s` is chosen for only once. For a longer one `when_worth` is called seconds before its
    operators are timed. `with_gains`: also measure the gains of knobs.
    """
    is_worth_it = False

    others = OthersWork()

    def by(ceilings: Ceilings | None, threads: ChosenThreads | None = None) -> Plan:
        return choose(job, pins, ceilings, label_of(recipe, job), cache, knobs_of(recipe), threads)

    def to_time(ceilings: Ceilings) -> list[Operation]:
        nonlocal is_worth_it
        plain = Settings(device=str(device))
        if why_not_here(job, plain) is not None:
            return []  # they will not run here, and their tensors are large
        half = [] if "precision" in pins else [replace(plain, precision="bf16")]
        chosen = by(ceilings)
        steps = steps_to_come(situation_of(job, pins, ceilings, cache))
        step_s = chosen.prediction.step_s
        if steps is not None and step_s is not None and steps * step_s < worth_timing_s:
            return []
        if steps is not None and step_s is not None:
            when_worth()
        is_worth_it = True
        return _to_time(job, ceilings, chosen.settings, plain, *half)

    def to_compare(ceilings: Ceilings) -> Iterable[GainComparison]:
        precisions = ("fp32",) if device.type == "cpu" or "precision" in pins else ("fp32", "bf16")
        return comparisons_of(job, device, precisions) if with_gains and is_worth_it else ()

    if cache is not None:
        key = trial_key(recipe, job, device, without=("lr",))  # a sweep over learning rates traces the step once
        keep_traces(job, Traces(private_cache(cache) / "traces", f"{key} {versions()}"))
    ceilings = ceilings_of(device, cache, _Wanted(to_time, to_compare))
    threads = None
    if device.type == "cpu" and "threads" not in pins:
        s = situation_of(job, pins, ceilings, cache)
        threads = choose_threads(job, s.plain.step_s, s.expected_s, others)
    return by(ceilings, threads), ceilings


def _to_time(job: Job, ceilings: Ceilings, *forms: Settings) -> list[Operation]:
    """The operators of these forms of a step that were not timed before."""
    found: list[Operation] = []
    for settings in forms:
        with suppress(Exception):  # no prediction is made for a form that can't be traced
            operations = work_of(job, settings).operations
            if any(one.key and one.key not in ceilings.operators for one in operations):
                found += work_of(job, settings, to_call=True).operations
    return found


def knobs_of(recipe: Recipe) -> tuple[Knob, ...]:
    """Flatout's knobs, and those of the recipe."""
    return (*KNOBS, *recipe.own_knobs)


def label_of(recipe: Recipe, job: Job) -> str:
    return f"{_data_name(recipe)}/{_model_name(job)}"


def _data_name(recipe: Recipe) -> str:
    if isinstance(recipe.data, Mapping):
        kind, value = next(iter(recipe.data.items()))
        return Path(value).name.partition(".")[0] if isinstance(value, str) else str(kind)
    return recipe.data if isinstance(recipe.data, str) else "data"


def _model_name(job: Job) -> str:
    return type(job.model).__name__.lower()
