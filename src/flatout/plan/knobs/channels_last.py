"""The memory format of images: convolution kernels prefer channels last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.engine.settings import Settings
from flatout.machine.optimisations import CHANNELS_LAST
from flatout.models.facts import has_convolution
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules, always
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation
from flatout.plan.step_gains import channels_last_gain

name = CHANNELS_LAST.name
off = False
lossy = False
risky = False
meets: tuple[str, ...] = ("precision", "compile")


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if _applies(s):
        yield Choice(name, True, "convolutions: the layout that their kernels prefer")
    else:
        yield Choice(name, False, "no image convolutions")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    if not now.channels_last and _applies(s):
        yield Candidate(True, "the layout that convolution kernels prefer", channels_last_gain(s, now))


def _applies(s: Situation) -> bool:
    images = any(len(column.shape) in (2, 3) for column in s.job.data.schema().values())
    return has_convolution(s.job.model) and images


rules = SettingRules(shown=always)
