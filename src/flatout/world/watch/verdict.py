"""Which rank causes a hang, decided only from what is known about each rank.

A rank that can't answer (gone, stopped, silent) is the cause. So is a rank that is not waiting or has ended while others wait.
Otherwise it is a rank that waits for something different than most. If all wait at the same place, no rank is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flatout.world.watch.pulse import EXCHANGE
from flatout.world.watch.stacks import Stack

Condition = Literal["answers", "silent", "stopped", "gone", "ended", "absent"]


@dataclass(frozen=True)
class Sight:
    """What is known about one rank when the hang is judged."""

    rank: int
    condition: Condition
    step: int = 0
    phase: str = ""
    for_s: float = 0.0  # seconds in this phase; for a rank that does not answer, since its last heartbeat
    host: str = ""
    pid: int = 0
    stack: Stack | None = None

    @property
    def waits_in(self) -> str:
        found = "" if self.stack is None else self.stack.waits_in
        return found or ("an exchange" if self.phase == EXCHANGE and self.condition == "answers" else "")

    @property
    def whereabouts(self) -> tuple[str, str, int]:
        """Ranks for which this is equal are at the same point of the program."""
        own = None if self.stack is None else self.stack.own
        return self.waits_in, own.place if own else self.phase, self.step


Reason = Literal["cannot answer", "elsewhere", "another collective", "split", "all wait", "none waits"]


@dataclass(frozen=True)
class Verdict:
    reason: Reason
    odd: tuple[Sight, ...]
    others: tuple[Sight, ...]


def judge(sights: Sequence[Sight]) -> Verdict:
    here = [sight for sight in sights if sight.condition == "answers"]
    ended = [sight for sight in sights if sight.condition == "ended"]
    dumb = [sight for sight in sights if sight not in here and sight not in ended]
    waiting = [sight for sight in here if sight.waits_in]
    elsewhere = [sight for sight in here if not sight.waits_in] if waiting else []
    if dumb:
        return _verdict("cannot answer", [*dumb, *elsewhere], sights)
    if elsewhere:
        return _verdict("elsewhere", elsewhere, sights)
    if ended and waiting:
        return _verdict("cannot answer", ended, sights)
    groups: dict[tuple[str, str, int], list[Sight]] = {}
    for sight in here:
        groups.setdefault(sight.whereabouts, []).append(sight)
    if len(groups) <= 1:
        return _verdict("all wait" if waiting else "none waits", [], here)
    most = max(groups.values(), key=len)
    odd = [sight for sight in here if sight not in most] if 2 * len(most) > len(here) else []
    if not waiting:
        return _verdict("none waits", odd, here)
    return _verdict("another collective", odd, here) if odd else _verdict("split", here, here)


def _verdict(reason: Reason, odd: Sequence[Sight], sights: Sequence[Sight]) -> Verdict:
    return Verdict(reason, tuple(odd), tuple(sight for sight in sights if sight not in odd))
