"""Shrink in this process; and a candidate judged by its trials, with everything real but the clock: it is twice as fast."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.measure.search import NoBaseline
from flatout.measure.time_limit import TimeLimit
from flatout.packaging.package import Package
from flatout.shrinking.goal import parse_goal
from flatout.shrinking.making import Shrunk, make_smaller
from flatout.shrinking.metric import metrics_of
from flatout.shrinking.request import ShrinkRequest
from flatout.shrinking.step import ShrinkStep
from flatout.shrinking.trials import ShrinkAttempt, ShrinkOption, ShrinkTrials
from flatout.shrinking.workshop.workshop import Workshop

SOURCE_S = 1e-3


def smaller(package: Package, **asked: Any) -> Shrunk:
    return make_smaller(package, Path("shrunk"), ShrinkRequest.read(**asked), isolated=False)


def judged(workshop: Workshop, *steps: ShrinkStep, batches: tuple[int, ...] = (1,), margin: float = 1.0) -> ShrinkAttempt:
    def ask(question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        if question["ask"] != "time":
            return workshop.ask(question, limit_s)
        return {which: arm(question[which], question["turns"]) for which in ("first", "second")}

    limit = TimeLimit(600.0)
    trials = ShrinkTrials(ask, metrics_of("classify", margin), batches, parse_goal(None), 1 << 20, limit, lambda line: None)
    standing = trials.baseline()
    assert not isinstance(standing, NoBaseline)
    assert trials.source_values()["accuracy"] > 0.95
    option = ShrinkOption(steps)
    attempt = trials.attempt(option, standing)
    return trials.prove(option, attempt, standing) if attempt.judgement.kept else attempt


def arm(name: str, turns: int) -> dict[str, Any]:
    seconds = SOURCE_S if name == "source" else SOURCE_S / 2
    return {"blocks_s": [seconds] * turns, "calls_s": [seconds] * turns}
