"""Where the time of a study went, from the command to the result. The parts add up to what a user has waited."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flatout.base.units import show_seconds

START, PROCESS, DATA, SETTINGS, LAYOUTS = "start", "process", "data", "settings", "layouts"
TRAINING, FINALS, RUNGS, SEARCH, SAVING, REST = "training", "finals", "rungs", "search", "saving", "rest"
WORDS = {
    START: "starting the command and reading the recipe",
    PROCESS: "starting a process for trials",
    DATA: "reading the data",
    SETTINGS: "choosing settings, with this machine's speed where they depend on it",
    LAYOUTS: "measuring layouts",
    TRAINING: "training trials",
    FINALS: "training finalists",
    RUNGS: "handing out trials and collecting scores",
    SEARCH: "choosing what to try next",
    SAVING: "saving and forgetting trials",
    REST: "all else",
}
_ONCE = (START, PROCESS, DATA, SETTINGS, LAYOUTS)
_SHOWN = 0.001  # of the whole; what took less is not listed


class StudyLedger:
    """`since_s`: by `clock`, when the command began. `earlier`: the parts of earlier sittings."""

    def __init__(self, since_s: float, earlier: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parts = {part: float(earlier.get(part, 0.0)) for part in WORDS if part != REST}
        self.add(START, clock() - since_s)

    def add(self, part: str, seconds: float) -> None:
        self._parts[part] += seconds

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Charges the time inside to this part, but for what is charged to others meanwhile."""
        began_s, known_s = self._clock(), self._sum
        try:
            yield
        finally:
            self.add(part, self._clock() - began_s - (self._sum - known_s))

    def parts(self, whole_s: float) -> dict[str, float]:
        """`whole_s`: of all sittings."""
        return {**self._parts, REST: whole_s - self._sum}

    @property
    def once_s(self) -> float:
        """What more rungs would not take again."""
        return math.fsum(self._parts[part] for part in _ONCE)

    @property
    def _sum(self) -> float:
        return math.fsum(self._parts.values())


def ledger_lines(parts: Mapping[str, float], whole_s: float) -> list[str]:
    """What the study did besides training, in the order of its course."""
    around = {part: parts[part] for part in WORDS if part in parts and part not in (TRAINING, FINALS)}
    return [
        f"{show_seconds(seconds)} {WORDS[part]} ({seconds / whole_s:.1%})"
        for part, seconds in around.items()
        if whole_s > 0 and seconds >= _SHOWN * whole_s
    ]


def parts_in(events: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
    """Of the study so far, as its last rung says."""
    for event in reversed(events):
        if isinstance(parts := event.get("parts"), Mapping):
            return parts
    return {}
