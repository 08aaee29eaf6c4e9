"""Kernels that give bit-identical results. A guarantee, not a speed-up: never changed by a trial, but its cost is measured."""

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
        yield Choice(name, True, "a resumed run is bit-identical to an uninterrupted one")
    else:
        yield Choice(name, False, "faster kernels that add in any order; a resume restores data order and state exactly")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    yield Candidate(not now.deterministic, "the cost of bit-identical results", 1.0)


def price(value: bool, found: Comparison) -> str:
    """`found`: seconds with `value` divided by seconds with the present setting."""
    cost, low, high = (found.ratio, found.low, found.high) if value else (1 / found.ratio, 1 / found.high, 1 / found.low)
    figures = f"{cost:.2f}x the time [{low:.2f}, {high:.2f}], n={found.n}"
    if value:
        costs = f"deterministic kernels would take {figures}"
        return f"{costs}{_doubtful(found)}: --set deterministic=on for bit-identical resumes"
    return f"deterministic kernels take {figures}{_doubtful(found)}: --off deterministic if resumes need not be bit-identical"


def unpriced(why: str) -> str:
    if "CUBLAS_WORKSPACE_CONFIG" in why:
        return "not measured: set CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment before the run"
    return why


def _doubtful(found: Comparison) -> str:
    return " (within the noise)" if found.better is None else ""


rules = SettingRules(shown=always)
