"""One kernel for the whole update, in place of one for each operation."""

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
        yield Choice(name, False, "the optimizer is your own")
    else:
        weights = show_count(parameter_count(s.job.model))
        yield Choice(name, True, f"one kernel for {weights} weights; can skip a bad step unasked")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    if not now.fused_optimizer and not callable(s.job.optimizer):
        yield Candidate(
            True,
            f"one kernel for {show_count(parameter_count(s.job.model))} weights; can skip a bad step unasked",
            fused_gain(s),
            unless_slower=True,
        )


rules = SettingRules(shown=always)
