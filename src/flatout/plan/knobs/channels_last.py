"""The memory format of images: channels last is what the kernels of convolutions want."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.engine.settings import Settings
from flatout.models.facts import has_convolution
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules, always
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "channels_last"
off = False
lossy = False
risky = False
meets: tuple[str, ...] = ("precision", "compile")

_FACTOR = {"cpu": 1.3, "cuda": 1.5}  # of convolutions that dominate; a trial says


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if _applies(s):
        yield Choice(name, True, "convolutions: the layout their kernels want")
    else:
        yield Choice(name, False, "no convolutions over images")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    if not now.channels_last and _applies(s):
        yield Candidate(True, "the layout that kernels of convolutions want", _FACTOR.get(s.device.type, 1.1))


def _applies(s: Situation) -> bool:
    images = any(len(column.shape) in (2, 3) for column in s.job.data.schema().values())
    return has_convolution(s.job.model) and images


rules = SettingRules(shown=always)
