"""Conformance suite for a knob: subclass it in a test to check that the search can use the knob.

class TestMine(KnobConformance):
    knob = Mine()
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

import flatout as fo
from flatout.engine.settings import Settings, value_of, with_values
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.plan.choose import choose, situation_of
from flatout.plan.knobs.all import KNOBS, conflicts
from flatout.plan.knobs.knob import Knob
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.reports import Ask
from flatout.recipe.build import build_job


def small_network() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten(), nn.Linear(288, 10)
    )


class KnobConformance:
    knob: ClassVar[Any]

    def recipe(self) -> fo.Recipe:
        """A job that the knob applies to; override it if the knob needs another one."""
        own = () if self.knob.name in {one.name for one in KNOBS} else (self.knob,)
        return fo.Recipe(data="digits", model=small_network, batch=32, lr=1e-3, budget="20000 steps", knobs=own)

    def situation(self) -> Situation:
        return situation_of(build_job(self.recipe()), {"device": "cpu"}, made_up())

    def plain(self) -> Settings:
        return with_values(Settings(device="cpu", fused_optimizer=False), {self.knob.name: self.knob.off})

    def test_it_has_all_that_a_knob_has(self) -> None:
        assert isinstance(self.knob.name, str) and isinstance(self.knob.lossy, bool) and isinstance(self.knob.risky, bool)
        assert self.knob.name not in self.knob.meets, "a knob must not list itself in meets"

    def test_its_default_is_one_choice_of_its_own_with_a_reason(self) -> None:
        decided = list(self.knob.default(self.situation(), {"tier": "resident"}))
        choices = [decision for decision in decided if isinstance(decision, Choice)]
        assert [choice.name for choice in choices] == [self.knob.name] and choices[0].why

    def test_candidates_are_other_values_each_with_a_reason_and_a_cost(self) -> None:
        s, now = self.situation(), self.plain()
        for candidate in self.knob.candidates(s, now):
            assert candidate.value != value_of(now, self.knob.name) and candidate.why
            assert candidate.cost_s >= 0 and (candidate.factor is None or candidate.factor > 0)
            turned = with_values(now, {self.knob.name: candidate.value})
            assert candidate.value not in [again.value for again in self.knob.candidates(s, turned)], (
                "the present value is offered again: it would be tried twice"
            )

    def test_pinned_it_stays_as_it_is(self) -> None:
        recipe = self.recipe()
        knobs: tuple[Knob, ...] = (*KNOBS, *recipe.own_knobs)
        pins = {"device": "cpu", self.knob.name: self.knob.off}
        plan = choose(build_job(recipe), pins, made_up(), "conformance", knobs=knobs)
        assert value_of(plan.settings, self.knob.name) == self.knob.off

    def test_turned_it_trains_and_the_step_is_the_same(self) -> None:
        s, now = self.situation(), self.plain()
        found = [with_values(now, {self.knob.name: candidate.value}) for candidate in self.knob.candidates(s, now)]
        bench = Bench(s.job, torch.device("cpu"))
        try:
            for settings in found:
                if not conflicts(settings):
                    report = bench.attempt(Ask(settings.to_dict(), None, now.to_dict(), measure_s=0.01))
                    assert report.ran, f"{report.failure}: {report.why}"
                    assert report.check is not None and report.check["passed"], report.check
        finally:
            bench.close()


def made_up() -> Ceilings:
    """Ceilings of an imaginary machine, so that nothing has to be measured."""

    def measured(value: float) -> MeasuredRate:
        return MeasuredRate(value, value, value, 10)

    products = {"fp32": measured(1e11), "bf16": measured(2e11)}
    return Ceilings("cpu", products, copy_bytes_per_s=measured(2e10), launch_s=measured(2e-6))
