"""How often the state is saved beside the loop: Young's interval, from what a save takes. Off: not on the way."""

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
    often = f"as often as pays with a failure in {s.pins.get('failure_every', Settings.failure_every)}, by what a save takes"
    yield Choice(name, "auto", f"{often}; written beside the loop; also at the end, at the best and on SIGTERM")


rules = SettingRules()
