"""Logging takes a large part of each step."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import LOGGING
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_EVERY = 20


def look(case: Case) -> Iterator[Finding]:
    spent_ms, words = case.rows[LOGGING], case.seen.words
    if not words or case.per_step(sum(words.values())) < 0.3:
        return
    line = case.places.get(LOGGING) or max(words, key=lambda name: words[name])
    yield Finding(
        "chatty_logging",
        spent_ms * (1 - 1 / _EVERY),
        line,
        "Every step is logged",
        f"{case.per_step(sum(words.values())):.3g} calls take {show_seconds(spent_ms / 1e3)} per step",
        f"log every {_EVERY} steps, and call experiment trackers from a thread",
        short=f"log every {_EVERY} steps",
    )
