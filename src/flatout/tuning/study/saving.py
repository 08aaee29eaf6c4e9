"""When trials that wait are written down: seldom enough that it takes a small share of the training that a kill would cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable

LEAST_S = 2.0  # of training since the last save; less is trained again
_SHARE = 0.02  # of that training, which saving may take
_BYTES_A_SECOND = 3e8  # until one save was timed


class UnsavedTraining:
    """`state_bytes`: what a trial's weights and its optimizer's take."""

    def __init__(self, state_bytes: float) -> None:
        self._each_s = state_bytes / _BYTES_A_SECOND
        self._seconds, self._numbers = 0.0, set[int]()

    def add(self, numbers: Iterable[int], seconds: float) -> None:
        """These trials were trained for so long together."""
        self._numbers |= set(numbers)
        self._seconds += seconds

    def worth_saving(self, ended: Collection[int]) -> list[int]:
        """The trials to write down now: none before it pays."""
        going = sorted(self._numbers - set(ended))
        pays = self._seconds >= max(LEAST_S, len(going) * self._each_s / _SHARE)
        return going if pays else []

    def saved(self, count: int, seconds: float) -> None:
        self._each_s = seconds / count
        self._seconds, self._numbers = 0.0, set()
