"""How fast each of several runs was, and how soon it was as good as the worst of them at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flatout.base.tree import Cell, Node, Table, TableColumn, TextLine
from flatout.base.units import show_metric, show_rate, show_seconds
from flatout.reporting.story import RunStory


def speed_nodes(stories: Sequence[RunStory]) -> list[Node]:
    goal = _goal(stories)
    columns = [
        TableColumn("run", "run"), TableColumn("status", "status"), TableColumn("rate", "speed", right=True),
        TableColumn("ratio", f"against {stories[0].name}", right=True), TableColumn("seconds", "training time", right=True),
    ]  # fmt: skip
    if goal is not None:
        columns += [
            TableColumn("score", goal.metric, right=True),
            TableColumn("reached", f"time to {goal.metric} {show_metric(goal.value)}", right=True),
        ]
    first = stories[0].result.get("samples_per_s")
    rows = []
    for story in stories:
        rate, seconds = story.result.get("samples_per_s"), story.result.get("train_seconds")
        row: dict[str, Any] = {
            "run": story.name,
            "status": story.status,
            "rate": Cell(rate, show_rate(rate, "samples")) if rate else None,
            "ratio": Cell(rate / first, f"{rate / first:.2f}x") if rate and first else None,
            "seconds": Cell(seconds, show_seconds(seconds)) if seconds else None,
        }
        if goal is not None:
            score, reached = _best(story), goal.reached_after(story)
            row["score"] = None if score is None else Cell(score, show_metric(score))
            row["reached"] = None if reached is None else Cell(reached, show_seconds(reached))
        rows.append(row)
    nodes: list[Node] = [TextLine("Speed", strong=True), Table("speed", columns, rows)]
    if goal is not None:
        nodes.append(TextLine(f"The scores are the best of each run; {show_metric(goal.value)} is the worst of them."))
    return nodes


class _Goal:
    def __init__(self, metric: str, value: float, *, higher_is_better: bool) -> None:
        self.metric, self.value, self._higher = metric, value, higher_is_better

    def reached_after(self, story: RunStory) -> float | None:
        """Seconds of training until the first evaluation that is at least as good."""
        for before, event in story.log.others:
            value = (event.get("metrics") or {}).get(self.metric) if event.get("kind") == "evaluation" else None
            if isinstance(value, int | float) and (value >= self.value if self._higher else value <= self.value):
                elapsed = story.log.exact([before - 1])[before - 1].get("elapsed_s") if before else None
                return float(elapsed) if isinstance(elapsed, int | float) else None
        return None


def _goal(stories: Sequence[RunStory]) -> _Goal | None:
    """None if the runs do not judge themselves by the same metric."""
    scored = [story for story in stories if _best(story) is not None]
    metrics = {story.result["best"].get("metric") for story in scored}
    values = [value for story in scored if (value := _best(story)) is not None]
    if len(metrics) != 1 or len(values) < 2:
        return None
    metric = str(metrics.pop())
    higher = _rises(stories, metric)
    return _Goal(metric, min(values) if higher else max(values), higher_is_better=higher)


def _best(story: RunStory) -> float | None:
    value = (story.result.get("best") or {}).get("value")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _rises(stories: Sequence[RunStory], metric: str) -> bool:
    """Whether higher is better: what a run marked as its best tells."""
    for story in stories:
        marked = [
            (event.get("metrics") or {}).get(metric)
            for event in story.events
            if event.get("kind") == "evaluation" and event.get("best")
        ]
        known = [value for value in marked if isinstance(value, int | float)]
        if len(known) > 1 and known[0] != known[-1]:
            return known[-1] > known[0]
    return metric != "loss"
