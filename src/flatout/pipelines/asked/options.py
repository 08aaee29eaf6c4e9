"""Values of stages that have a form of their own: durations, sizes, and when a stage runs again."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from flatout.base.units import parse_bytes, parse_seconds
from flatout.pipelines.asked.keys_of import as_text, text

_CLOCK = re.compile(r"at ([01]?[0-9]|2[0-3]):([0-5][0-9])")
_DRIFT = "drift in "
DAY_S = 86400.0


@dataclass(frozen=True)
class When:
    """How long a result is good for: some time, until a clock shows `at_minute` of the day, or until a server has seen drift,
    which the file `drift` says."""

    every_s: float | None = None
    at_minute: int | None = None
    drift: str | None = None

    def due(self, made: float, zone_s: float) -> float:
        """In seconds since 1970, if it is a time. `zone_s`: how far the local clock is ahead of UTC."""
        if self.every_s is not None:
            return made + self.every_s
        assert self.at_minute is not None
        local = made + zone_s
        at = math.floor(local / DAY_S) * DAY_S + 60 * self.at_minute
        return (at if at > local else at + DAY_S) - zone_s


def parse_when(written: str) -> When:
    words = " ".join(written.split())
    if (clock := _CLOCK.fullmatch(words)) is not None:
        return When(at_minute=60 * int(clock[1]) + int(clock[2]))
    if words.startswith("every ") and (seconds := parse_seconds(words.removeprefix("every "))) > 0:
        return When(every_s=seconds)
    if (file := written.strip().removeprefix(_DRIFT)) != written.strip() and file.strip():
        return When(drift=file.strip())
    raise ValueError(
        f"expected 'every 6 h', 'every 1 day', 'at 03:00' or 'drift in served-state/drift-NAME.json', got {written!r}"
    )


def when(value: Any) -> str:
    parse_when(text(value))
    return str(value)


def duration(value: Any) -> str:
    if parse_seconds(as_text(value)) <= 0:
        raise ValueError(f"expected more than 0 s, got {value!r}")
    return str(value)


def size(value: Any) -> str:
    parse_bytes(as_text(value))
    return str(value)
