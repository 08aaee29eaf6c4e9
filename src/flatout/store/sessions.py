"""How long the processes of a run worked, from its log, without reading all of it. A run that was killed has several."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.sealed import read_line

_BEGINS = b'{"kind": "planned"'
_SAVED = b'{"kind": "checkpoint_saved"'
_LINES_BACK = 20  # that may be torn or damaged at the end of a session


@dataclass(frozen=True)
class Session:
    """One process of a run. `first`: its first event. `kept_s`: until its last checkpoint; later work is lost if it died."""

    seconds: float
    kept_s: float
    first: dict[str, Any]
    energy_j: float | None = None  # of the run until then, at its last log point


def sessions_of(log: Path) -> list[Session]:
    """Oldest first. Empty without a log, or if nothing in it can be read."""
    try:
        with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            begins = list(_places(content, _BEGINS))
            ends = [*begins[1:], len(content)]
            return [_session(content, begin, end) for begin, end in zip(begins, ends, strict=True)]
    except (OSError, ValueError):  # there is none; an empty file can't be mapped
        return []


def _places(content: mmap.mmap, words: bytes) -> Iterator[int]:
    """Of lines that begin with these words."""
    at = content.find(words)
    while at >= 0:
        if at == 0 or content[at - 1 : at] == b"\n":
            yield at
        at = content.find(words, at + 1)


def _session(content: mmap.mmap, begin: int, end: int) -> Session:
    first = _event(content, begin)
    last, energy_j = _last(content, begin, end)
    saved = content.rfind(_SAVED, begin, end)
    kept_s = 0.0 if saved < 0 else _seconds(_event(content, saved))
    return Session(max(_seconds(first), last, kept_s), kept_s, first, energy_j)


def _last(content: mmap.mmap, begin: int, end: int) -> tuple[float, float | None]:
    """Seconds at the last event that can be read, and the energy at the last log point near it."""
    seconds, energy_j = 0.0, None
    for _ in range(_LINES_BACK):
        start = content.rfind(b"\n", begin, end - 1) + 1 or begin
        event = _event(content, start)
        seconds = max(seconds, _seconds(event))
        energy = event.get("energy_j")
        if isinstance(energy, int | float):
            return seconds, float(energy)
        if start <= begin:
            break
        end = start
    return seconds, energy_j


def _event(content: mmap.mmap, start: int) -> dict[str, Any]:
    """Empty for a line that is torn or damaged."""
    end = content.find(b"\n", start) + 1 or len(content)
    line = read_line(0, content[start:end], unsealed=True)
    return {} if line is None else line.fields


def _seconds(event: dict[str, Any]) -> float:
    found = event.get("t")
    return float(found) if isinstance(found, int | float) and found >= 0 else 0.0
