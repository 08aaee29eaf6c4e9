"""How many threads compute a step on a CPU. Off: as many as torch starts.

Not tried like other settings: trials are remembered, and the best number depends on what else the machine does now. So whole
steps are timed before each run, see plan/thread_times.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.plan.knobs.knob import Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "threads"
off = 0


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if s.device.type != "cpu":
        yield Choice(name, 0, f"as torch starts them: steps are computed on {s.device.type}")
    elif s.threads is None:
        yield Choice(name, 0, "as torch starts them")
    else:
        source = "pinned" if s.threads.is_pinned else "measured" if s.threads.gain is not None else "default"
        yield Choice(name, s.threads.count, s.threads.why, source, s.threads.gain)


rules = SettingRules(zero="auto")
