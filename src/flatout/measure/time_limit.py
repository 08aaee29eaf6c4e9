"""The time that a search may take, and how much is left."""

from __future__ import annotations

import time
from collections.abc import Callable


class TimeLimit:
    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts now. `clock` may be a recording's clock, on which replayed trials take as long as they did."""
        self.limit_s, self._clock = limit_s, clock
        self._began_s = clock()

    @property
    def spent_s(self) -> float:
        return max(0.0, self._clock() - self._began_s)

    @property
    def left_s(self) -> float:
        return self.limit_s - self.spent_s

    @property
    def is_over(self) -> bool:
        return self.spent_s > self.limit_s
