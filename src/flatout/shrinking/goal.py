"""What a shrink is for: speed unless a goal says otherwise. "p99 5 ms", "5 ms", "size 4x", "speed 2x"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from flatout.base.errors import UsageError
from flatout.base.latency_goal import LatencyGoal
from flatout.base.units import show_seconds

_FACTOR = re.compile(r"(size|speed)\s+(\d+(?:\.\d+)?)\s*x?", re.IGNORECASE)
_EXAMPLES = "'p99 5 ms', '5 ms', 'size 4x' or 'speed 2x'"

Kind = Literal["speed", "size", "latency"]


@dataclass(frozen=True)
class ShrinkGoal:
    """`amount`: a factor, or seconds; 0 for the most that there is."""

    kind: Kind = "speed"
    amount: float = 0.0
    percentile: float = 99.0

    @property
    def is_asked(self) -> bool:
        return self.amount > 0

    def is_met(self, speed: float | None, size: float | None, latency_s: float | None) -> bool:
        """Only of a goal with an amount. A value that is not known meets nothing."""
        if self.kind == "latency":
            return latency_s is not None and latency_s <= self.amount
        found = speed if self.kind == "speed" else size
        return found is not None and found >= self.amount

    def __str__(self) -> str:
        if not self.is_asked:
            return self.kind
        if self.kind == "latency":
            return f"p{self.percentile:g} {show_seconds(self.amount)}"
        return f"{self.kind} {self.amount:g}x"


def parse_goal(text: str | None) -> ShrinkGoal:
    if text is None:
        return ShrinkGoal()
    words = text.strip()
    if words.lower() in ("size", "speed"):
        return ShrinkGoal("size" if words.lower() == "size" else "speed")
    if (factor := _FACTOR.fullmatch(words)) is not None:
        amount = float(factor[2])
        if amount <= 1:
            raise UsageError(f"--goal: a factor above 1 is expected, got {text!r}")
        return ShrinkGoal("size" if factor[1].lower() == "size" else "speed", amount)
    try:
        latency = LatencyGoal.parse(words)
    except UsageError as error:
        raise UsageError(f"--goal is {_EXAMPLES}, got {text!r}") from error
    return ShrinkGoal("latency", latency.seconds, 100 * latency.share)
