"""Compute logits for a multiple of 64 tokens, which matrix kernels prefer. The weights keep the original vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.base.errors import RecipeError
from flatout.engine.settings import Settings
from flatout.machine.optimisations import ALIGNED_PRODUCTS
from flatout.models.head import can_pad
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "vocabulary_padding"
off = 0
lossy = False  # padding adds 0 to every sum
risky = False
meets: tuple[str, ...] = ("precision",)

MULTIPLE = 64


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if s.pins.get(name) and not can_pad(s.job.model):
        said = f"settings: {name}={s.pins[name]}: {type(s.job.model).__name__} has no head with an attribute pad_vocabulary_to"
        raise RecipeError([f"{said}, which this setting needs; --off {name}, or add the attribute"])
    tokens = s.job.data.vocabulary or 0
    if not tokens or not can_pad(s.job.model):
        yield Choice(name, 0, "no output head that supports padding")
    elif not tokens % MULTIPLE:
        yield Choice(name, 0, f"{tokens:,} tokens are already a multiple of {MULTIPLE}")
    elif s.device.type != "cuda":
        yield Choice(name, 0, f"not padded: only GPU kernels prefer a multiple of {MULTIPLE} (here {tokens:,} tokens)")
    else:
        padded = tokens + -tokens % MULTIPLE
        yield Choice(name, MULTIPLE, f"{tokens:,} tokens computed as {padded:,}: a width that kernels prefer, same loss")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    tokens = s.job.data.vocabulary or 0
    if s.device.type == "cuda" and not now.vocabulary_padding and tokens % MULTIPLE and can_pad(s.job.model):
        factor = ALIGNED_PRODUCTS.usual_of_step.get(s.device.type)
        yield Candidate(MULTIPLE, f"{tokens:,} tokens are not a multiple of {MULTIPLE}, which kernels prefer", factor)


rules = SettingRules(not_split_by=("tensor", "pipeline"), zero="off")
