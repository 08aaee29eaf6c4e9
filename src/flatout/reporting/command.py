"""Commands about a run's recipe, with the overrides and settings that the run had."""

from __future__ import annotations

from shlex import quote
from typing import Any

from flatout.reporting.story import RunStory


def command_of(story: RunStory, verb: str, *changes: str, fresh: bool = False) -> str:
    """`flatout VERB RECIPE ...`; `changes` replace overrides of the same key. Empty: the recipe is no file."""
    origin = story.origin
    if origin is None or origin.file is None:
        return ""
    changed = {change.partition("=")[0] for change in changes}
    kept = [one for one in origin.overrides if one.partition("=")[0] not in changed]
    pins = [f"--set {quote(f'{name}={_pin(value)}')}" for name, value in origin.pins.items()]
    return " ".join(["flatout", verb, *map(quote, [origin.file, *kept, *changes]), *pins, *(["--fresh"] if fresh else [])])


def _pin(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
