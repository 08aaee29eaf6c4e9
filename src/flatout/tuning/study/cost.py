"""What a study took, as what a run took: all of its time, and how much of it went into trials that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.runs.costs import FAILED_TRIALS, STUDIES, RunCost
from flatout.tuning.study.folder import StudyFolder


def cost_of_study(folder: StudyFolder) -> RunCost:
    """Raises StoreError if its own description is damaged."""
    asked, events = folder.asked, folder.events()
    is_done = any(event.get("kind") == "finished" for event in events)
    about, recipe = asked.get("about") or {}, asked.get("recipe") or {}
    cost = RunCost(
        folder.name, "study" if is_done else "unfinished study", float(asked["created"]), str(about.get("device", ""))
    )
    price = recipe.get("price_per_hour")
    cost.price = float(price) if isinstance(price, int | float) else None
    failed_s = _failed_s(events)
    cost.add(FAILED_TRIALS, failed_s)
    cost.add(STUDIES, _worked_s(events) - failed_s)
    if joules := max((_joules(event) for event in events), default=0.0):
        cost.meter, cost.joules = "meter of a study", {STUDIES: joules}
    return cost


def _worked_s(events: Sequence[Mapping[str, Any]]) -> float:
    """Of all its processes: the clock of events begins again in each."""
    whole = last = 0.0
    for event in events:
        at = event.get("t")
        if isinstance(at, int | float):
            whole += last if at < last else 0.0
            last = float(at)
    return whole + last


def _failed_s(events: Sequence[Mapping[str, Any]]) -> float:
    """Of the time of each rung, the share of its trials that failed."""
    rungs = [event for event in events if event.get("kind") == "rung" and event.get("trials")]
    return sum(float(rung.get("seconds") or 0.0) * len(rung.get("failed") or ()) / len(rung["trials"]) for rung in rungs)


def _joules(event: Mapping[str, Any]) -> float:
    return float((event.get("spent") or {}).get("joules") or 0.0)
