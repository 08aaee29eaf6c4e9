"""The plan without trials: each knob's default with its reason. Pinned settings are never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.base.errors import RecipeError
from flatout.engine.job import Job
from flatout.engine.settings import Settings, with_values
from flatout.machine.ceilings import Ceilings
from flatout.machine.device import device_name, pick_device
from flatout.plan.knobs.all import AFTER, BEFORE, KNOBS, conflicts
from flatout.plan.knobs.knob import Decisions, Knob
from flatout.plan.plan import Choice, Plan, Prediction, RejectedSetting
from flatout.plan.situation import Situation
from flatout.plan.thread_times import ChosenThreads

Decide = Callable[[Situation, Mapping[str, Any]], Decisions]


def situation_of(
    job: Job,
    pins: Mapping[str, Any],
    ceilings: Ceilings | None,
    cache: Path | None = None,
    threads: ChosenThreads | None = None,
) -> Situation:
    pins = {name: value for name, value in pins.items() if (name, value) != ("cache_compression", "auto")}
    device = pick_device(str(pins.get("device", "auto")))
    s = Situation(job, device, pins, ceilings, Prediction(), cache, threads=threads)
    return replace(s, plain=s.predicted(Settings(device=str(device))))


def choose(
    job: Job,
    pins: Mapping[str, Any],
    ceilings: Ceilings | None,
    label: str,
    cache: Path | None = None,
    knobs: Sequence[Knob] = KNOBS,
    threads: ChosenThreads | None = None,
) -> Plan:
    return choose_in(situation_of(job, pins, ceilings, cache, threads), label, knobs)


def choose_in(s: Situation, label: str, knobs: Sequence[Knob] = KNOBS) -> Plan:
    choices: list[Choice] = []
    rejected: list[RejectedSetting] = []
    values: dict[str, Any] = {"device": str(s.device)}
    decisions: list[Decide] = [one.default for one in (*BEFORE, *knobs, *AFTER)]
    for decide in decisions:
        for decision in decide(s, values):
            if isinstance(decision, RejectedSetting):
                rejected.append(decision)
                continue
            if decision.name in s.pins and decision.name != "device":
                decision = replace(decision, value=s.pins[decision.name], why="pinned by you", source="pinned", predicted=None)
            values[decision.name] = decision.value
            choices.append(decision)
    for name, value in s.pins.items():
        if name not in values:
            values[name] = value
            choices.append(Choice(name, value, "pinned by you", "pinned"))
    rejected = [r for r in rejected if values.get(r.name) != r.value]
    settings = with_values(Settings(device=str(s.device)), values)
    if problems := conflicts(settings):
        raise RecipeError([f"settings: {problem}" for problem in problems])
    return Plan(
        model=label,
        machine=device_name(s.device),
        unit=s.job.unit,
        per_sample=s.job.data.tokens_per_row,
        batch=round(s.job.rows_per_step),
        settings=settings,
        choices=tuple(choices),
        rejected=tuple(rejected),
        prediction=s.predicted(settings),
        frozen=s.job.frozen.words(s.job.model),
    )
