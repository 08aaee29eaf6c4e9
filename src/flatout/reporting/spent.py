"""The parts of a page about energy and money."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.tree import Node, TextLine
from flatout.reporting.story import RunStory
from flatout.runs.cost_view import by_kind, waste_line
from flatout.runs.costs import cost_of
from flatout.runs.energy_view import energy_nodes, meter_words


def spent_nodes(story: RunStory) -> list[Node]:
    idle_w = None if story.plan is None else story.plan.prediction.idle_w
    energy = energy_nodes(story.result, idle_w)
    return [*([TextLine("Energy", strong=True), *energy] if energy else []), *_cost(story)]


def meter_note(result: Mapping[str, Any]) -> str:
    """Which meter it was, or why there is none."""
    device = (result.get("energy") or {}).get("device") or {}
    if "joules" in device:
        return meter_words(device)
    return str(device.get("why") or "the device has no meter that can be read")


def _cost(story: RunStory) -> list[Node]:
    """Empty without a price."""
    try:
        cost = cost_of(story.folder)
    except (StoreError, OSError):
        return []  # the page names the damaged file at its top
    if cost.price is None or not cost.seconds:
        return []
    price = f"At {cost.price:g} USD per hour, with trials of settings before the run and work that was lost by kills."
    return [TextLine("Cost", strong=True), by_kind([cost]), TextLine(waste_line([cost])), TextLine(price)]
