"""Blocks forget their activations and compute them again in the backward: time for memory."""

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
    yield Choice(name, False, "not before memory turns out to be short")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    """Only where memory is short: a split batch may become whole."""
    if now.micro_batch and not now.activation_checkpointing:
        yield Candidate(True, "memory is short: it may buy a larger micro-batch", 1.05)


rules = SettingRules()
