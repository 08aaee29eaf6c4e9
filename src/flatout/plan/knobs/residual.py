"""The format of what flows between the blocks of a model of tokens. Autocast leaves it in float32.

Its gain is that of a compiled step: eagerly it makes no difference. A trial of its own would have to compile once more, and of
GPT-2 on an H200 that takes as long as seven other trials. So before compiling it is kept unless it is slower, if it learns as
well; where compiling is not kept after it, the search takes it back.
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

_FACTOR = 1.03  # about, of a compiled step of GPT-2; a trial says


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if s.pins.get(name, off) != off and not can_narrow(s.job.model):
        said = f"settings: {name}={s.pins[name]}: {type(s.job.model).__name__} has neither an embedding nor an attribute"
        raise RecipeError([f"{said} narrow_residual, which this would turn; --off {name}"])
    if not can_narrow(s.job.model):
        yield Choice(name, off, "no embedding that a stream through blocks begins with")
    else:
        yield Choice(name, off, "as autocast leaves it: fewer digits are worth a trial")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    attends = any(group.name == ATTENTION for group in s.plain.groups)  # an embedding alone may belong to a table
    if now.residual == off and now.precision in MIXED and attends and can_narrow(s.job.model):
        to_compile = s.device.type != "cpu" and now.compile == "off" and s.pins.get("compile") != "off"
        yield Candidate("autocast", "half as much to move between the blocks", _FACTOR, unless_slower=to_compile)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.residual == "autocast" and now.precision not in MIXED:
        yield f"residual=autocast is a matter of mixed precision and precision={now.precision} is none: --off residual"


rules = SettingRules(_conflicts)
