"""The order in which stages of a mesh take parts of a batch forward and back: never chosen, only pinned."""

from __future__ import annotations

from flatout.plan.knobs.knob import SettingRules

name = "pipeline"
off = "1f1b"
rules = SettingRules()
