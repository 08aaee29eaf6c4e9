"""Kernels that give the same bits every time. A promise, not a speed: the same in every arm of a trial, and with a price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.engine.settings import Settings
from flatout.measure.stats import Comparison
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules, always
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "deterministic"
off = False
priced = True


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if s.device.type == "cpu":
        yield Choice(name, True, "a resumed run equals an uninterrupted one bit for bit")
    else:
        yield Choice(name, False, "fast kernels that add in any order; a resume is exact in data and state")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    yield Candidate(not now.deterministic, "what the promise costs", 1.0)


def price(value: bool, found: Comparison) -> str:
    """`found`: seconds with `value` over seconds as it stands."""
    cost, low, high = (found.ratio, found.low, found.high) if value else (1 / found.ratio, 1 / found.high, 1 / found.low)
    figures = f"{cost:.2f}x the time [{low:.2f}, {high:.2f}], n={found.n}"
    if value:
        costs = f"deterministic kernels would cost {figures}"
        return f"{costs}{_doubtful(found)}: --set deterministic=on, for a resume bit for bit"
    return f"a resume bit for bit costs {figures}{_doubtful(found)}: --off deterministic does without"


def unpriced(why: str) -> str:
    if "CUBLAS_WORKSPACE_CONFIG" in why:
        return "not measured: it needs CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment before CUDA starts"
    return why


def _doubtful(found: Comparison) -> str:
    return ", which is within the noise" if found.better is None else ""


rules = SettingRules(shown=always)
