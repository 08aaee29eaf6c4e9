"""Compression of rows in the cache; chosen with the tier. Off: not compressed."""

from __future__ import annotations

from flatout.plan.knobs.knob import SettingRules, always

name = "cache_compression"
off = "none"
rules = SettingRules(shown=always)
