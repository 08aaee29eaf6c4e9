"""Who is the odd one out when nobody moves. Decided from what is known of each rank, and from nothing else.

Whoever can't answer is odd: gone, stopped, silent. So is whoever is not waiting while others wait, or has ended while they do.
Else it is whoever waits for something else than most do. Where all wait in one place no rank is to blame.
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
    """One rank as it is known at the time of the verdict."""

    rank: int
    condition: Condition
    step: int = 0
    phase: str = ""
    for_s: float = 0.0  # in this phase; for one that does not answer, since it was last heard
    host: str = ""
    pid: int = 0
    stack: Stack | None = None

    @property
    def waits_in(self) -> str:
        found = "" if self.stack is None else self.stack.waits_in
        return found or ("an exchange" if self.phase == EXCHANGE and self.condition == "answers" else "")

    @property
    def whereabouts(self) -> tuple[str, str, int]:
        """Ranks of which these are equal are at the same point of the same program."""
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
