"""How fast each of several runs was, and how soon it was as good as the worst of them at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flatout.base.tree import Cell, Node, Table, TableColumn, TextLine
from flatout.base.units import show_metric, show_rate, show_seconds
from flatout.reporting.goal import best_of, goal_of
from flatout.reporting.story import RunStory


def speed_nodes(stories: Sequence[RunStory]) -> list[Node]:
    goal = goal_of(stories)
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
            score, reached = best_of(story), goal.reached(story, "elapsed_s")
            row["score"] = None if score is None else Cell(score, show_metric(score))
            row["reached"] = None if reached is None else Cell(reached, show_seconds(reached))
        rows.append(row)
    nodes: list[Node] = [TextLine("Speed", strong=True), Table("speed", columns, rows)]
    if goal is not None:
        nodes.append(TextLine(f"The scores are the best of each run; {show_metric(goal.value)} is the worst of them."))
    return nodes
