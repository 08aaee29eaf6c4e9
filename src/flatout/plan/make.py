"""A recipe's plan: defaults from what is known, then trials where they pay, with a receipt of what was tried."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flatout import __version__
from flatout.base.budget import Budget
from flatout.base.source import lasting_text, source_text
from flatout.base.trust import private_cache
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.ceilings import Ceilings
from flatout.machine.device import device_name, pick_device
from flatout.machine.facts import read_facts
from flatout.machine.gains import GainComparison
from flatout.machine.probe import probe
from flatout.measure.counts import Operation
from flatout.measure.receipt import Receipt
from flatout.measure.recording import Trove
from flatout.models.build import source_hash
from flatout.plan.choose import choose, situation_of
from flatout.plan.knobs.all import KNOBS, PRICED
from flatout.plan.knobs.knob import Knob
from flatout.plan.layouts.fitting import why_not_here
from flatout.plan.options import LIMIT_S, Options, SearchTerms
from flatout.plan.plan import Plan, Prediction
from flatout.plan.situation import Situation
from flatout.plan.step_gains import comparisons_of
from flatout.plan.traces import Traces
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.process import TRIAL_LIMIT_S, TrialProcess
from flatout.plan.trials.recording import Recording
from flatout.plan.trials.reports import Tries
from flatout.plan.with_receipt import steps_to_come, with_receipt
from flatout.plan.work import keep_traces, work_of
from flatout.recipe.build import check_job, check_loss_head
from flatout.recipe.schema import Recipe

Say = Callable[[str], None]
_WORTH_TIMING_S = 60.0  # a run this long repays the seconds that timing its operators takes
# of a recipe, what no trial depends on
_NOT_OF_A_TRIAL = (
    "budget",
    "schedule",
    "seed",
    "name",
    "evaluate",
    "early_stop",
    "price_per_hour",
    "settings",
    "data",  # but for its shapes
)


@dataclass(frozen=True)
class _Asked:
    """How trials are asked for: see `checked_plan`."""

    limit_s: float
    analyze: bool
    recall: bool
    say: Say


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
    """Checked first: what does not fit is said before this machine is measured. `limit_s` of 0: no trials.

    `analyze` tries what this run would be too short to try. `recall`: no trial is made, those of earlier runs count.
    """
    pins = recipe.pins
    device = pick_device(pins.get("device", "auto"))
    check_job(job, device)
    if limit_s <= 0:
        plan, _ = _chosen(recipe, job, pins, device, cache)
        check_loss_head(job, device, plan.settings.loss_head)
        return plan, None
    trove = Trove(cache, _key(recipe, job, device), _versions())
    asked = _Asked(limit_s, analyze, recall, say)
    with _tries(recipe, job, device, cache, limit_s) as live:

        def begin() -> None:
            if trove.kept is None and not recall and device.type != "cpu":  # a CPU would have to share what it is timed by
                live.begin()

        worth_timing_s = 0.0 if analyze else _WORTH_TIMING_S
        plan, ceilings = _chosen(
            recipe, job, pins, device, cache, worth_timing_s=worth_timing_s, when_worth=begin, with_gains=not recall
        )
        check_loss_head(job, device, plan.settings.loss_head)
        return _tried_plan(recipe, situation_of(job, pins, ceilings, cache), plan, trove, live, asked)


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
    """For processes that each have one of equal `shares` of every batch. Trials are of a share, by one process alone: what the
    processes tell each other is no part of them, and no setting that is tried changes it."""
    rows = -(-job.batch // shares)
    total = Situation(job, torch.device("cpu"), pins, None, Prediction()).total_steps
    budget = job.budget if total is None else Budget(float(total), "steps")  # a share has as many steps, not as many rows
    share, smaller = recipe.with_share(rows, pins), replace(job, batch=rows, budget=budget)
    plan, receipt = checked_plan(share, smaller, cache, limit_s=0.0 if job.data.train.shapes_vary else limit_s, say=say)
    return replace(plan, batch=round(job.rows_per_step)), receipt


def default_plan(recipe: Recipe, job: Job, cache: Path | None) -> Plan:
    return _chosen(recipe, job, recipe.pins, pick_device(recipe.pins.get("device", "auto")), cache)[0]


@dataclass(frozen=True)
class _Wanted:
    """What is measured beyond the ceilings, asked for once these are known."""

    operations: Callable[[Ceilings], Iterable[Operation]] = lambda ceilings: ()
    comparisons: Callable[[Ceilings], Iterable[GainComparison]] = lambda ceilings: ()


_NOTHING_MORE = _Wanted()


def ceilings_of(device: torch.device, cache: Path | None, wanted: _Wanted = _NOTHING_MORE) -> Ceilings | None:
    """What this machine was measured to do; measured in a few seconds the first time, then kept."""
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
    """Chosen twice: by the ceilings alone, and again once operators were timed: of that choice, of a plain step, and of one
    in the format that is asked about everywhere. A run that is over in less than `worth_timing_s` is chosen for once; of a
    longer one `when_worth` is told, seconds before its operators are timed. `with_gains`: what knobs gain is measured too."""
    is_worth_it = False

    def by(ceilings: Ceilings | None) -> Plan:
        return choose(job, pins, ceilings, label_of(recipe, job), cache, knobs_of(recipe))

    def to_time(ceilings: Ceilings) -> list[Operation]:
        nonlocal is_worth_it
        plain = Settings(device=str(device))
        if why_not_here(job, plain) is not None:
            return []  # nobody will run them here, and their tensors are large
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
        key = _key(recipe, job, device, without=("lr",))  # of a sweep over rates the step is traced once
        keep_traces(job, Traces(private_cache(cache) / "traces", f"{key} {_versions()}"))
    ceilings = ceilings_of(device, cache, _Wanted(to_time, to_compare))
    return by(ceilings), ceilings


def _to_time(job: Job, ceilings: Ceilings, *forms: Settings) -> list[Operation]:
    """The operators of these forms of a step; none, where all of them were timed before."""
    found: list[Operation] = []
    for settings in forms:
        with suppress(Exception):  # a form that can't be traced is not predicted either
            operations = work_of(job, settings).operations
            if any(one.key and one.key not in ceilings.operators for one in operations):
                found += work_of(job, settings, to_call=True).operations
    return found


def _tried_plan(
    recipe: Recipe, s: Situation, plan: Plan, trove: Trove, live: Tries, asked: _Asked
) -> tuple[Plan, Receipt | None]:
    """What the trove has of earlier runs need not be measured again."""
    steps, knobs = steps_to_come(s), knobs_of(recipe)
    if steps is None:
        return plan, None
    isolated = recipe.source is not None
    if not isolated and s.job.data.train.stream is not None:
        return plan, None  # a trial would take samples from the run
    kept = trove.kept
    if asked.recall and kept is None:
        return plan, None
    if kept is not None:
        asked.say(f"what was measured at {trove.at} need not be measured again")
    began_s = time.monotonic()
    recording = Recording(kept, None if asked.recall else live)
    terms = SearchTerms(steps, asked.limit_s, isolated, asked.analyze, free=asked.recall)
    options = Options(s, plan.settings, knobs, terms)
    if (why := options.why_none()) is None:
        receipt = _searched(s, plan.settings, knobs, recording, terms, asked.say)
    elif kept is not None:  # too short for trials, not for those that were made before
        recording = Recording(kept)
        receipt = _searched(s, plan.settings, knobs, recording, replace(terms, free=True), asked.say)
    else:
        plain = options.reference.to_dict()
        receipt = Receipt(reference=plain, settings=plain, entries=(), isolated=isolated, stopped=why)
    if recording.asked_live:
        trove.write(recording.to_dict())
    receipt = replace(
        receipt,
        took_s=time.monotonic() - began_s,
        notes=tuple(note for note in (trove.note, _from_before(trove.at, recording)) if note),
        machine=device_name(s.device),
        versions=_versions(),
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    return with_receipt(plan, receipt, s, knobs, "measured" if recording.asked_live else "cached"), receipt


def _searched(
    s: Situation, start: Settings, knobs: Sequence[Knob], recording: Recording, terms: SearchTerms, say: Say
) -> Receipt:
    from flatout.plan.search import KnobSearch  # here: a run that is too short for trials starts without it

    return KnobSearch(s, start, knobs, recording, terms, priced=PRICED, clock=recording.clock, say=say).run()


def _from_before(at: str, recording: Recording) -> str:
    if not at or not recording.replayed:
        return ""
    rest = "the rest now" if recording.asked_live else "nothing now"
    return f"{recording.replayed} of the measurements were made at {at}, {rest}."


def knobs_of(recipe: Recipe) -> tuple[Knob, ...]:
    """flatout's, and those that the recipe brings along."""
    return (*KNOBS, *recipe.own_knobs)


@contextmanager
def _tries(
    recipe: Recipe, job: Job, device: torch.device, cache: Path | None, limit_s: float
) -> Iterator[TrialProcess | _InProcess]:
    """A process of their own for recipes from a file; for Python objects, which only this process has, this one."""
    if recipe.source is None:
        with _InProcess(job, device) as here:
            yield here
        return
    told = json.dumps(_for_another_process(recipe, device, cache))
    with TrialProcess([sys.executable, "-m", "flatout.cli.trying"], min(limit_s, TRIAL_LIMIT_S), told) as process:
        yield process


def _for_another_process(recipe: Recipe, device: torch.device, cache: Path | None) -> dict[str, Any]:
    assert recipe.source is not None
    overrides, pins = recipe.given
    return {
        "recipe": str(recipe.source.resolve()),
        "overrides": list(overrides),
        "pins": dict(pins),
        "device": str(device),
        "cache": None if cache is None else str(cache),
        "threads": torch.get_num_threads(),
        "path": sys.path,
    }


class _InProcess:
    """A bench that is made when the first trial is asked for."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self._job, self._device = job, device
        self._made: Bench | None = None

    def __enter__(self) -> _InProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self._made is not None:
            self._made.close()

    def begin(self) -> None:
        """Nothing can be done ahead: the run itself is done here."""

    def attempt(self, ask: Any) -> Any:
        return self._bench().attempt(ask)

    def losses(self, settings: Any, steps: int, seed: int, after: int = 0) -> Any:
        return self._bench().losses(settings, steps, seed, after)

    def held(self, settings: Any, rows: int) -> Any:
        return self._bench().held(settings, rows)

    def _bench(self) -> Bench:
        if self._made is None:
            self._made = Bench(self._job, self._device)
        return self._made


def _key(recipe: Recipe, job: Job, device: torch.device, without: tuple[str, ...] = ()) -> str:
    """What a measurement depends on: the model as written and as built, its batch, what it computes, device, threads."""
    asked = {name: value for name, value in recipe.written().items() if name not in (*_NOT_OF_A_TRIAL, *without)}
    shapes = {name: [list(column.shape), str(column.dtype)] for name, column in job.data.schema().items()}
    parts = (*(part for part in (recipe.objective, recipe.optimizer) if callable(part)), *(k.turn for k in recipe.own_knobs))
    tensors = (*job.model.named_parameters(), *job.model.named_buffers())
    built = [lasting_text(job.model), *(f"{name} {tuple(t.shape)} {t.dtype} {t.requires_grad}" for name, t in tensors)]
    own = [source_hash(recipe.model, weights=False), *map(source_text, parts), *built]
    place = [device_name(device), torch.get_num_threads() if device.type == "cpu" else 0, read_facts().cpu.model]
    told = json.dumps([asked, shapes, own, place, job.rows_per_step], sort_keys=True, default=lasting_text)
    return hashlib.sha256(told.encode()).hexdigest()[:24]


def _versions() -> dict[str, str]:
    cuda = torch.version.cuda or "none"
    return {"flatout": __version__, "torch": torch.__version__, "cuda": cuda, "python": platform.python_version()}


def label_of(recipe: Recipe, job: Job) -> str:
    return f"{_data_name(recipe)}/{_model_name(job)}"


def _data_name(recipe: Recipe) -> str:
    if isinstance(recipe.data, Mapping):
        kind, value = next(iter(recipe.data.items()))
        return Path(value).name.partition(".")[0] if isinstance(value, str) else str(kind)
    return recipe.data if isinstance(recipe.data, str) else "data"


def _model_name(job: Job) -> str:
    return type(job.model).__name__.lower()
