"""Steps between log points. Each log point waits for the device. Off: as few as possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.units import show_seconds
from flatout.engine.logbook import INTERVAL_S
from flatout.engine.settings import LOG_SLOTS, Settings, with_values
from flatout.plan.knobs.knob import Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "log_every"
off = LOG_SLOTS


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    yield Choice(name, 0, f"about twice a second{_in_steps(s, values)}; no waiting for the device in between")


def _in_steps(s: Situation, values: Mapping[str, Any]) -> str:
    if s.plain.step_s is None:
        return ""
    step_s = s.predicted(with_values(Settings(device=str(s.device)), values)).step_s or s.plain.step_s
    steps = max(1, min(LOG_SLOTS, round(INTERVAL_S / step_s)))
    if steps > 1 and s.total_steps is not None and s.total_steps <= steps:
        return f", and at the end; this run should end before that, at about {show_seconds(step_s)} per step"
    often = "every step" if steps == 1 else f"about every {steps} steps"
    return f": {often}, at about {show_seconds(step_s)} per step"


rules = SettingRules(zero="auto")
