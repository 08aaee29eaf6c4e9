"""One fused kernel for the whole optimizer update, instead of one per operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.base.units import show_count
from flatout.engine.settings import Settings
from flatout.machine.optimisations import FUSED_OPTIMIZER
from flatout.models.facts import parameter_count
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules, always
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation
from flatout.plan.step_gains import fused_gain

name = FUSED_OPTIMIZER.name
off = False
lossy = False
risky = False
meets: tuple[str, ...] = ()


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if callable(s.job.optimizer):
        yield Choice(name, False, "custom optimizer")
    else:
        weights = show_count(parameter_count(s.job.model))
        yield Choice(name, True, f"one kernel for {weights} weights; skips steps whose loss is not finite")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    if not now.fused_optimizer and not callable(s.job.optimizer):
        yield Candidate(
            True,
            f"one kernel for {show_count(parameter_count(s.job.model))} weights; skips steps whose loss is not finite",
            fused_gain(s),
            unless_slower=True,
        )


rules = SettingRules(shown=always)
