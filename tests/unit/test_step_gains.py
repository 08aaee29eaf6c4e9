"""Knobs expect the gain measured on this machine for this job, else the usual gain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import flatout as fo
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.optimisations import CHANNELS_LAST, FUSED_OPTIMIZER
from flatout.plan import make as planned
from flatout.plan.choose import situation_of
from flatout.plan.knobs import channels_last, fused_optimizer
from flatout.plan.situation import Situation
from flatout.plan.step_gains import comparisons_of
from flatout.recipe.build import build_job
from flatout.testing.knobs import made_up, small_network

CPU = torch.device("cpu")
PLAIN = Settings(device="cpu", fused_optimizer=False)


def recipe(**given: Any) -> fo.Recipe:
    return fo.Recipe(**{"data": "digits", "model": small_network, "batch": 32, "lr": 1e-3, "budget": "100 steps", **given})


def situation(job: Job, factor: float | None = None) -> Situation:
    """`factor`: the measured gain of every comparison of this job."""
    gains = {} if factor is None else {one.key: factor for one in comparisons_of(job, CPU, ("fp32",))}
    return situation_of(job, {"device": "cpu"}, replace(made_up(), gains=gains))


def factor_of(knob: Any, s: Situation) -> float | None:
    (candidate,) = knob.candidates(s, PLAIN)
    factor: float | None = candidate.factor
    return factor


def test_without_a_measurement_the_usual_gain_is_expected() -> None:
    s = situation(build_job(recipe()))
    assert factor_of(channels_last, s) == CHANNELS_LAST.usual_of_step["cpu"]
    assert factor_of(fused_optimizer, s) == FUSED_OPTIMIZER.usual_of_step["cpu"]
    unmeasured = replace(s, ceilings=None)
    assert factor_of(channels_last, unmeasured) == CHANNELS_LAST.usual_of_step["cpu"]


@pytest.mark.parametrize("factor", [2.0, 0.8])
def test_a_measured_gain_counts_for_its_part_of_the_step(factor: float) -> None:
    s = situation(build_job(recipe()), factor)
    for knob, group in ((channels_last, "convolutions"), (fused_optimizer, "optimizer update")):
        part_s = sum(one.seconds for one in s.plain.groups if one.name == group)
        assert s.plain.step_s is not None and 0 < part_s < s.plain.step_s
        expected = s.plain.step_s / (s.plain.step_s - part_s + part_s / factor)
        assert factor_of(knob, s) == pytest.approx(expected)


def test_gains_of_other_work_are_not_used() -> None:
    s = situation(build_job(recipe()), 3.0)
    other = replace(s, job=build_job(recipe(batch=16, optimizer="sgd")))
    assert factor_of(channels_last, other) == CHANNELS_LAST.usual_of_step["cpu"]
    assert factor_of(fused_optimizer, other) == FUSED_OPTIMIZER.usual_of_step["cpu"]


def test_only_operators_of_the_job_are_compared() -> None:
    flat = build_job(recipe(model=lambda: nn.Linear(64, 10), optimizer=lambda groups, lr: torch.optim.SGD(groups, lr)))
    assert not list(comparisons_of(flat, CPU, ("fp32",)))
    assert len(list(comparisons_of(build_job(recipe()), CPU, ("fp32",)))) == 2


@pytest.mark.parametrize(
    ("budget", "analyze", "measured"), [("100 steps", False, 0), ("1e9 steps", False, 2), ("100 steps", True, 2)]
)
def test_gains_are_measured_only_with_trials(
    monkeypatch: pytest.MonkeyPatch, budget: str, analyze: bool, measured: int
) -> None:
    asked: list[Any] = []

    def ceilings_of(device: torch.device, cache: Any, wanted: Any) -> Any:
        list(wanted.operations(made_up()))
        asked.append(list(wanted.comparisons(made_up())))
        return made_up()

    monkeypatch.setattr(planned, "ceilings_of", ceilings_of)
    monkeypatch.setattr(planned, "tried_plan", lambda recipe, s, plan, *rest: (plan, None))
    given = recipe(budget=budget, settings={"device": "cpu"})
    planned.checked_plan(given, build_job(given), None, analyze=analyze)
    planned.default_plan(given, build_job(given), None)  # as `explain` asks for it
    assert list(map(len, asked)) == [measured, 0]
