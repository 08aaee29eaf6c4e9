"""One kernel for the whole update, in place of one for each operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.base.units import show_count
from flatout.engine.settings import Settings
from flatout.models.facts import parameter_count
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules, always
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "fused_optimizer"
off = False
lossy = False
risky = False
meets: tuple[str, ...] = ()

_FACTOR = 1.2  # on steps of a few hundred microseconds; less where the update is a small part


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
            _FACTOR,
            unless_slower=True,
        )


rules = SettingRules(shown=always)
