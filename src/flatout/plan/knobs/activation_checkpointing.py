"""Recompute activations in the backward pass instead of storing them: less memory, more time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.engine.settings import Settings
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "activation_checkpointing"
off = False
lossy = False
risky = False
meets: tuple[str, ...] = ("micro_batch",)


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    yield Choice(name, False, "not needed unless memory runs short")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    """Only if memory is short: a split batch may then fit whole."""
    if now.micro_batch and not now.activation_checkpointing:
        yield Candidate(True, "memory is short: may allow a larger micro-batch", 1.05)


rules = SettingRules()
