"""How many samples are computed at once. The batch stays as requested: a split gives the same loss with less memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.engine.settings import Settings
from flatout.models.facts import has_batch_norm, has_dropout
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules, always
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "micro_batch"
off = 0
lossy = False
risky = False
meets: tuple[str, ...] = ("precision", "activation_checkpointing")

_LARGER = 1.1
_FACTOR = 1.03  # if a part of the batch fits a cache that the whole does not


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if has_batch_norm(s.job.model):
        why = f"all {s.job.batch} at once: batch norm makes the samples of a batch depend on each other"
    elif has_dropout(s.job.model):
        why = f"all {s.job.batch} at once; a split would change the dropout masks"
    else:
        why = f"all {s.job.batch} at once; split only if memory runs out, with the same loss"
    yield Choice(name, 0, why)


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    if has_batch_norm(s.job.model) or has_dropout(s.job.model) or s.job.data.train.shapes_vary:
        return
    if now.micro_batch and 2 * now.micro_batch <= s.job.batch:
        larger = 2 * now.micro_batch
        yield Candidate(larger if larger < s.job.batch else 0, "a larger micro-batch may fit now", _LARGER)
    whole = now.micro_batch or s.job.batch
    if whole % 2 == 0 and whole >= 32:
        yield Candidate(whole // 2, "half as many at once", _FACTOR)


rules = SettingRules(shown=always, zero="whole")
