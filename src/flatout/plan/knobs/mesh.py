"""How processes share a run; chosen when the processes are connected, after the plan. Off: each has all weights."""

from __future__ import annotations

from flatout.plan.knobs.knob import SettingRules

name = "mesh"
off = ""
rules = SettingRules()
