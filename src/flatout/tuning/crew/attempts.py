"""Trains what one process trains together, and finds out which of its trials took the process down.

If the process crashes, hangs or runs out of memory, its trials are split in two and tried again, until the one that does it is
known: that trial has failed, the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flatout.base.answering_child import CRASHED, FAILED, GONE, NoAnswer
from flatout.tuning.crew.placing import TrialWork

_LEAST_LIMIT_S, _PATIENCE = 120.0, 20.0  # a unit of trials may take so many times as long as its layout's rate predicts
_LARGER = 10.0  # times as many: a shape that was not measured may need more time than those that were

Ask = Callable[[Mapping[str, Any], float | None], dict[str, Any]]  # a question, and how long the answer may take


@dataclass(frozen=True)
class Trained:
    """`scores`: of each trial, or why it failed. `seconds`: of the process that was at work longest. `lost`: processes that
    ended before they should."""

    scores: dict[int, float | str] = field(default_factory=dict)
    seconds: float = 0.0
    lost: tuple[str, ...] = ()


def attempt(ask: Ask, unit: TrialWork, which: str, *, again: bool = False) -> Trained:
    """NoAnswer of kind GONE: nobody is there any more, which says nothing of the trials."""
    question = {
        "train": {
            "trials": list(unit.trials), "start": unit.start, "to": unit.to, "layout": unit.layout.to_dict(), "which": which,
        }
    }  # fmt: skip
    try:
        answer = ask(question, _limit_s(unit))
        why, kind = answer.get("failed", ""), FAILED
    except NoAnswer as none:
        if none.kind == GONE:
            raise
        answer, why, kind = {"seconds": 0.0}, str(none), none.kind
    if not why:
        return Trained({int(number): score for number, score in answer["scores"].items()}, answer["seconds"])
    lost = () if kind == FAILED else (why,)
    if len(unit.trials) == 1:
        if kind == CRASHED and not again:  # it may have been another program that ended the process
            retried = attempt(ask, unit, which, again=True)
            return Trained(retried.scores, retried.seconds, (why, *retried.lost))
        return Trained({unit.numbers[0]: why}, answer["seconds"], lost)
    half = len(unit.trials) // 2
    parts = [attempt(ask, replace(unit, trials=trials), which) for trials in (unit.trials[:half], unit.trials[half:])]
    return Trained(
        {number: score for part in parts for number, score in part.scores.items()},
        answer["seconds"] + sum(part.seconds for part in parts),
        (*lost, *(why for part in parts for why in part.lost)),
    )


def _limit_s(unit: TrialWork) -> float | None:
    rate = max(unit.layout.rates.values(), default=unit.layout.rate_elsewhere / _LARGER)
    return max(_LEAST_LIMIT_S, _PATIENCE * len(unit.trials) * unit.to / rate) if rate else None
