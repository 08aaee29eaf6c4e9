"""The device that trains. Off: the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.machine.device import device_name
from flatout.plan.knobs.knob import Decisions, SettingRules, always
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "device"
off = "cpu"


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    pinned = s.pins.get(name, "auto") != "auto"
    why = "pinned by you" if pinned else "no accelerator found" if s.device.type == "cpu" else f"found {device_name(s.device)}"
    yield Choice(name, str(s.device), why, "pinned" if pinned else "default")


rules = SettingRules(shown=always)
