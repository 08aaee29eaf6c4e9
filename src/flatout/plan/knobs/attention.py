"""The kernel for scaled dot-product attention: one of torch's, or FlexAttention compiled for the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.engine.attention import offers_hook
from flatout.engine.settings import MIXED, Settings
from flatout.models.facts import has_dropout
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "attention"
off = "auto"
lossy = True
risky = False
meets: tuple[str, ...] = ("precision", "compile")

_FACTORS = {"cudnn": 1.05, "flash": 1.02, "efficient": 1.01}  # over torch's default choice, on GPT-2 with bf16
_SHORT_S = 120.0  # in a run this short in plain PyTorch, no kernel repays building cuDNN's: 3 s or more
_FLEX_FACTOR, _FLEX_COST_S = 1.0, 30.0  # about the speed of flash for causal attention; compiled with the code around it


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    short = s.expected_s is not None and s.expected_s < _SHORT_S
    if short and s.device.type == "cuda" and values.get("precision") in MIXED and _attends(s):
        yield Choice(name, "flash", "short run: flash needs no building, cuDNN's kernel takes seconds for each shape")
        return
    counted = bool(s.plain.groups)
    why = "torch chooses the kernel" if _attends(s) or not counted else "this model does not use torch's attention"
    yield Choice(name, "auto", why)


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    if s.device.type != "cuda" or now.attention != "auto" or not _attends(s):
        return
    for value, factor in _FACTORS.items():
        if value == "efficient" or now.precision in MIXED:  # flash and cuDNN do not support float32
            yield Candidate(value, "a specific attention kernel", factor)
    if now.compile != "off" and offers_hook(s.job.model) and not has_dropout(s.job.model):
        yield Candidate("flex", "attention compiled with the code around it", _FLEX_FACTOR, _FLEX_COST_S)


def _attends(s: Situation) -> bool:
    return any(group.name == "attention" for group in s.plain.groups)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.attention in ("cudnn", "efficient") and now.device_kind == "cpu":
        yield f"attention={now.attention} needs a GPU; the run is on a CPU: --off attention"
    if now.attention == "flex" and now.compile == "off":
        yield "attention=flex is fast only if compiled: --set compile=on, or --off attention"
    if now.attention == "flex" and "context" in now.mesh:
        yield "attention=flex does not work with sequences split by context: --off attention"


rules = SettingRules(_conflicts)
