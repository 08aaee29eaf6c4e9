"""How processes share a run; chosen once they have met, which no plan sees. Off: each has all weights."""

from __future__ import annotations

from flatout.plan.knobs.knob import SettingRules

name = "mesh"
off = ""
rules = SettingRules()
