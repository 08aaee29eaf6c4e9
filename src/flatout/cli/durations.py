"""Durations in command-line options."""

from __future__ import annotations

from flatout.base.errors import UsageError
from flatout.base.units import parse_seconds


def seconds_of(option: str, text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error
    if seconds <= 0:
        raise UsageError(f"{option}: expected a duration greater than 0, got {text!r}")
    return seconds


def seconds_if(option: str, text: str | None) -> float | None:
    """None if the option was not given."""
    return None if text is None else seconds_of(option, text)
