"""The schedule of pipeline stages. Never chosen automatically, only pinned."""

from __future__ import annotations

from flatout.plan.knobs.knob import SettingRules

name = "pipeline"
off = "1f1b"
rules = SettingRules()
