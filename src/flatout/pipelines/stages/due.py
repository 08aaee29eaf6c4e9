"""When a stage with a `when` runs again: at a time, or when a server has seen drift after its result was made."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.base.errors import UsageError
from flatout.base.files import read_json
from flatout.pipelines.asked.options import parse_when

_CLOCK_SLACK_S = 60.0


@dataclass(frozen=True)
class DueAt:
    """`at`: in seconds since 1970; infinite while there is no drift. `waits_for`: in words, if it is no time."""

    at: float
    why: str
    waits_for: str = ""


def due(written: str, made: float, home: Path) -> DueAt:
    """When a result that was made then has to be made again. `home`: where relative paths start."""
    asked = parse_when(written)
    if asked.drift is not None:
        return _after_drift(asked.drift, made, home)
    zone_s = -float(time.altzone if time.localtime().tm_isdst > 0 else time.timezone)
    return DueAt(asked.due(made, zone_s), f"it is time ({written})")


def overdue(written: str, made: float, home: Path) -> Sequence[str]:
    """Why a result has to be made again now."""
    now = time.time()
    if made > now + _CLOCK_SLACK_S:
        return ["the clock was set back, so how old its result is can't be known"]
    found = due(written, made, home)
    return [found.why] if now >= found.at else []


def _after_drift(file: str, made: float, home: Path) -> DueAt:
    """From the state that `flatout serve --drift` keeps. Without the file no server has watched yet."""
    waits_for = f"drift in {file}"
    try:
        state = read_json(home / file)
        alarmed, moved = float(state["alarmed"]), ", ".join(map(str, state["moved"]))
    except FileNotFoundError:
        return DueAt(math.inf, "", f"{waits_for} (which is not there yet)")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"when: {home / file} is no state of a drift watch ({error!r}); expected is the file drift-NAME.json in the folder "
            "that flatout serve --drift has as --state"
        ) from error
    if alarmed <= made:
        return DueAt(math.inf, "", waits_for)
    columns = f": {moved}" if moved else ""
    return DueAt(alarmed, f"a server has seen drift since{columns} ({file})", waits_for)
