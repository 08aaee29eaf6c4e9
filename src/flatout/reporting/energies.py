"""What several runs used: energy in all, per sample, and until each was as good as the worst of them at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.base.tree import Cell, Node, Table, TableColumn, TextLine
from flatout.base.units import show_energy, show_joules, show_metric
from flatout.reporting.goal import goal_of
from flatout.reporting.story import RunStory
from flatout.runs.energy_view import meter_words


def energies_nodes(stories: Sequence[RunStory]) -> list[Node]:
    """Empty if no run has read a meter."""
    used = [_device(story) for story in stories]
    if not any("joules" in one for one in used):
        return []
    goal = goal_of(stories)
    columns = [
        TableColumn("run", "run"), TableColumn("meter", "meter"), TableColumn("joules", "energy", right=True),
        TableColumn("per_sample_j", "per sample", right=True),
    ]  # fmt: skip
    if goal is not None:
        columns.append(TableColumn("to_goal_j", f"energy to {goal.metric} {show_metric(goal.value)}", right=True))
        columns.append(TableColumn("ratio", f"against {stories[0].name}", right=True))
    rows = []
    first = None if goal is None else goal.reached(stories[0], "energy_j")
    for story, one in zip(stories, used, strict=True):
        row: dict[str, Any] = {"run": story.name, "meter": "unavailable"}
        if "joules" in one:
            each = one.get("per_sample_j")
            row |= {"meter": meter_words(one), "joules": Cell(one["joules"], show_energy(one["joules"]))}
            row["per_sample_j"] = None if each is None else Cell(each, show_joules(each))
            if goal is not None and (joules := goal.reached(story, "energy_j")) is not None:
                row["to_goal_j"] = Cell(joules, show_joules(joules))
                row["ratio"] = Cell(joules / first, f"{joules / first:.2f}x") if first else None
        rows.append(row)
    nodes: list[Node] = [TextLine("Energy", strong=True), Table("energies", columns, rows)]
    if len({one.get("meter") for one in used}) > 1:
        nodes.append(TextLine("The runs were measured by different meters: their figures can't be compared with each other."))
    return nodes


def _device(story: RunStory) -> Mapping[str, Any]:
    used = story.result.get("energy")
    device = used.get("device") if isinstance(used, Mapping) else None
    return device if isinstance(device, Mapping) else {}
