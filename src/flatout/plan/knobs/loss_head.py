"""How the token loss is computed: torch's formula, one pass over all logits per direction, one in total, or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.base.errors import RecipeError
from flatout.base.units import show_bytes
from flatout.engine.settings import MIXED, Settings
from flatout.objectives.next_token import NextToken
from flatout.objectives.token_loss import LARGE
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules
from flatout.plan.plan import Choice, RejectedSetting
from flatout.plan.situation import Situation

name = "loss_head"
off = "plain"
lossy = False  # the same sums in another order, so one step proves it
risky = False
meets: tuple[str, ...] = ("precision", "compile", "micro_batch")

# GPT-2's logits are 6.6 GB in bf16: torch's formula moves about 100 GB for them in eager mode, these kernels 20 GB
_FUSED_FACTOR = 1.1
_JOINED_FACTOR = 1.12  # this one 13 GB
_CHUNKED_FACTOR = 1.05  # from the larger micro-batch that it may allow; alone it launches more kernels and gains nothing


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if (why_not := _why_not(s, str(s.pins.get(name, off)))) is not None:
        raise RecipeError([f"settings: {why_not}"])
    if _why_not(s, "fused") is None and _vocabulary(s) >= LARGE:
        tokens = f"{_vocabulary(s):,} tokens"
        if _is_offered(s):
            yield Choice(name, "joined", f"{tokens}: reads the logits once and stores the gradients in their place")
        else:
            yield Choice(name, "fused", f"{tokens}: one pass over the logits per direction, without a float32 copy")
        if _why_not(s, "chunked") is None:
            yield RejectedSetting(name, "chunked", "only saves memory: in chunks it launches more kernels and gains nothing")
    elif not isinstance(s.job.objective, NextToken):
        yield Choice(name, off, f"other values need the objective next_token; it is {s.job.objective.name}")
    elif _vocabulary(s) >= LARGE:
        needed = "a CUDA device, Triton and the unmodified next_token loss"
        yield Choice(name, off, f"torch's formula: the faster kernels need {needed}")
    else:
        yield Choice(name, off, "torch's formula: the vocabulary is not large")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    if _vocabulary(s) < LARGE:
        return
    kernels = _why_not(s, "fused") is None
    if now.loss_head == "plain" and kernels:
        yield Candidate("fused", "one pass over the logits per direction, without a float32 copy", _FUSED_FACTOR)
    if now.loss_head in ("plain", "fused") and kernels and _why_not(s, "joined") is None:
        better = _JOINED_FACTOR / (_FUSED_FACTOR if now.loss_head == "fused" else 1.0)
        yield Candidate("joined", "one pass over the logits in total, gradients stored in their place", better)
    if now.loss_head != "chunked" and now.micro_batch and _why_not(s, "chunked") is None:
        held = show_bytes(_logits_bytes(s, now))
        why = f"memory is short: {held} of logits are never stored at once, which may allow a larger micro-batch"
        yield Candidate("chunked", why, _CHUNKED_FACTOR, unless_slower=True)


def _why_not(s: Situation, value: str) -> str | None:
    return s.job.objective.why_no_loss_head(value, s.job.model, s.device)


def _is_offered(s: Situation) -> bool:
    """The head declares how its logits are computed. Other models might do more in their forward; a trial shows it."""
    return _why_not(s, "joined") is None and hasattr(s.job.model.head, "projection")


def _vocabulary(s: Situation) -> int:
    return s.job.data.vocabulary or 0


def _logits_bytes(s: Situation, now: Settings) -> int:
    size = 2 if now.precision in MIXED else 4
    return round(now.micro_batch * s.job.data.tokens_per_row * _vocabulary(s) * size)


rules = SettingRules(not_split_by=("tensor", "pipeline"))
