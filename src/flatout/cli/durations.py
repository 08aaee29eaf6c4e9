"""Durations as options of a command."""

from __future__ import annotations

from flatout.base.errors import UsageError
from flatout.base.units import parse_seconds


def seconds_of(option: str, text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error
    if seconds <= 0:
        raise UsageError(f"{option}: expected more than nothing, got {text!r}")
    return seconds


def seconds_if(option: str, text: str | None) -> float | None:
    """None where it was not given."""
    return None if text is None else seconds_of(option, text)
