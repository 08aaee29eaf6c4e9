"""What each process has still to train. One that is done early takes over trials of the others that nobody has begun."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from flatout.tuning.crew.placing import TrialWork


class Queues:
    def __init__(self, placed: Mapping[int, Sequence[TrialWork]]) -> None:
        self._of = {place: list(units) for place, units in placed.items() if units}
        self._lock = threading.Lock()

    @property
    def places(self) -> list[int]:
        return list(self._of)

    def units(self, place: int) -> list[TrialWork]:
        """That no process has begun yet."""
        return list(self._of[place])

    def next(self, place: int) -> TrialWork | None:
        """None: there is nothing left for this process."""
        with self._lock:
            if own := self._of[place]:
                return own.pop(0)
            for units in sorted(self._of.values(), key=lambda units: -sum(unit.seconds for unit in units)):
                for unit in reversed(units):
                    if unit.start == 0:  # weights of others would have to be moved
                        units.remove(unit)
                        return unit
            return None

    def back(self, place: int, unit: TrialWork) -> None:
        with self._lock:
            self._of[place].insert(0, unit)

    def rest(self) -> list[TrialWork]:
        """What was left by processes that are gone."""
        return [unit for units in self._of.values() for unit in units]
