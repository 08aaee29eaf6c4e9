"""How rows are written where a cache keeps them; chosen with the tier. Off: as they are."""

from __future__ import annotations

from flatout.plan.knobs.knob import SettingRules, always

name = "cache_compression"
off = "none"
rules = SettingRules(shown=always)
