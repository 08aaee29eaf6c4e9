"""The format of the residual stream between the blocks of a token model. Autocast leaves it in float32.

The gain shows only in a compiled step; in eager mode it makes no difference. A separate trial would have to compile once more,
which for GPT-2 on an H200 takes as long as seven other trials. So before compiling it is kept unless it is slower, if the loss
is as good; if compiling is then rejected, the search drops it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.base.errors import RecipeError
from flatout.engine.settings import MIXED, Settings
from flatout.measure.groups import ATTENTION
from flatout.models.residual import can_narrow
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "residual"
off = "float32"
lossy = True
risky = False
meets: tuple[str, ...] = ("precision", "compile")

_FACTOR = 1.03  # approximate, for a compiled step of GPT-2; a trial measures it


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if s.pins.get(name, off) != off and not can_narrow(s.job.model):
        said = f"settings: {name}={s.pins[name]}: {type(s.job.model).__name__} has neither an embedding nor an attribute"
        raise RecipeError([f"{said} narrow_residual, which this setting needs; --off {name}"])
    if not can_narrow(s.job.model):
        yield Choice(name, off, "the model has no residual stream that begins at an embedding")
    else:
        yield Choice(name, off, "as autocast leaves it; a lower precision needs a trial")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    attends = any(
        group.name == ATTENTION for group in s.plain.groups
    )  # a model with an embedding but no attention may be for tables
    if now.residual == off and now.precision in MIXED and attends and can_narrow(s.job.model):
        to_compile = s.device.type != "cpu" and now.compile == "off" and s.pins.get("compile") != "off"
        yield Candidate("autocast", "half the bytes between blocks", _FACTOR, unless_slower=to_compile)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.residual == "autocast" and now.precision not in MIXED:
        yield f"residual=autocast needs precision bf16, fp16 or fp8; it is {now.precision}: --off residual"


rules = SettingRules(_conflicts)
