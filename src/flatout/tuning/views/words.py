"""Values, points and sentences of a study at most 100 columns wide."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from flatout.base.units import show_metric, show_value

COLUMNS = 100
_LONGEST = 24  # characters of a value in a table or a picture


def value_text(value: Any, longest: int = _LONGEST) -> str:
    """A list or a mapping as a recipe writes it; if that is too long, without brackets, and shortened."""
    whole = _flow(value)
    if len(whole) > longest and isinstance(value, Mapping) and len(value) == 1:
        (name, options), *_ = value.items()
        if isinstance(options, Mapping):
            whole = f"{name} " + " ".join(f"{key}={_flow(option)}" for key, option in options.items())
    return shortened(whole, longest)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: max(1, longest - 3)] + "..."


def point_lines(point: Mapping[str, Any], first: str, longest: int = 60) -> list[str]:
    """`first`, then each key and its value."""
    return wrapped(first + " ".join(f"{key}={value_text(value, longest)}" for key, value in point.items()), len(first))


def wrapped(text: str, indent: int = 2) -> list[str]:
    """Lines that fit; all but the first are indented as the first one is, and by `indent`."""
    before = len(text) - len(text.lstrip()) + indent
    lines = textwrap.wrap(
        text.strip(), COLUMNS, initial_indent=" " * (before - indent), subsequent_indent=" " * before, break_on_hyphens=False
    )
    return lines or [""]


def command(*words: str) -> str:
    return "flatout " + " ".join(shlex.quote(word) for word in words)


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The end of each key that no other key has: `layers` for model.gpt.layers."""
    short: dict[str, str] = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[place:]) for place in range(len(parts) - 1, -1, -1)]
        short[key] = next(end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1 or end == key)
    return short


def signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{show_metric(abs(value))}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return "null" if value is None else show_value(value) if isinstance(value, bool | int | float | str) else json.dumps(value)
