"""What is noted of a trial while it trains, however it is laid out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Stopped = Callable[[], bool]
DIVERGED = "it diverged: its loss is not a finite number any more"
_MOST_BAD = 8  # steps in a row whose loss is not finite; a step like that changes nothing, so more of them never end


def never() -> bool:
    """Nobody asks to stop."""
    return False


class TrialLosses:
    """Of the steps so far."""

    def __init__(self) -> None:
        self.last: float | None = None
        self._bad = 0

    def add(self, losses: Sequence[float]) -> None:
        for loss in losses:
            self._bad = 0 if math.isfinite(loss) else self._bad + 1
        if losses:
            self.last = losses[-1]

    def extend(self, last: float, bad: int, count: int) -> None:
        """`count` more losses, of which the last `bad` are not finite."""
        self._bad = self._bad + bad if bad == count else bad
        self.last = last

    @property
    def diverged(self) -> bool:
        return self._bad >= _MOST_BAD
