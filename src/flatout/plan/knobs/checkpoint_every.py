"""How often checkpoints are saved in the background: Young's interval from the measured save time. Off: only at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.engine.settings import Settings
from flatout.plan.knobs.knob import Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "checkpoint_every"
off = "end"


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    often = (
        f"from the time of a save and one failure per {s.pins.get('failure_every', Settings.failure_every)} (Young's interval)"
    )
    yield Choice(name, "auto", f"{often}; in the background; also at the end, at the best metric and on SIGTERM")


rules = SettingRules()
