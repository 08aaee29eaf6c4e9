"""How the trials of a study were laid out, a line for each kind of trial."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flatout.tuning.views.words import shortened, value_text, wrapped

_SHOWN = 4


def layout_lines(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """`events` of kind layout; a later one of the same group replaces an earlier one."""
    latest = {event["group"]: event for event in events}
    names = _names(list(latest))
    lines: list[str] = []
    for group, event in list(latest.items())[:_SHOWN]:
        layout = event["layout"]
        lines += wrapped(f"  {names[group]}{layout['kind']}: {layout['why']}")
        if layout["proof"] and layout["kind"] == "stacked":
            lines += wrapped(f"    {layout['proof']}")
    more = len(latest) - _SHOWN
    return [*lines, *([f"  ({more} more; --json has all)"] if more > 0 else [])]


def _names(groups: Sequence[str]) -> dict[str, str]:
    """By the keys in which they differ: hidden=[64]."""
    flat = {group: _flat(group) for group in groups}
    keys = dict.fromkeys(key for one in flat.values() for key in one)
    differing = [key for key in keys if len({str(one.get(key)) for one in flat.values()}) > 1]
    return {group: _name({key: one[key] for key in differing if key in one}) for group, one in flat.items()}


def _name(values: Mapping[str, Any]) -> str:
    words = ", ".join(f"{key.rpartition('.')[2]}={value_text(value)}" for key, value in values.items())
    return f"{shortened(words, 48)}: " if words else ""


def _flat(group: str) -> dict[str, Any]:
    """Empty if it is text of another kind."""
    try:
        return dict(_pairs(json.loads(group), ""))
    except ValueError:
        return {}


def _pairs(tree: Any, prefix: str) -> list[tuple[str, Any]]:
    if not isinstance(tree, Mapping) or not tree:
        return [(prefix.rstrip("."), tree)]
    return [pair for key, inner in tree.items() for pair in _pairs(inner, f"{prefix}{key}.")]
