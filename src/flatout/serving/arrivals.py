"""The rate at which rows arrive, from those of the last seconds."""

from __future__ import annotations

from math import exp

_MEMORY_S = 1.0
_LEAST_SHARE = 0.1  # a rate from less than a tenth of the memory would be noise


class ArrivalRate:
    """Rows are forgotten exponentially, so the rate of now counts most."""

    def __init__(self) -> None:
        self._rows = 0.0
        self._first_s = self.last_s = -1.0

    def add(self, rows: int, now_s: float) -> None:
        if self._first_s < 0:
            self._first_s = self.last_s = now_s
        if now_s > self.last_s:
            self._rows *= exp((self.last_s - now_s) / _MEMORY_S)
            self.last_s = now_s
        self._rows += rows

    def per_s(self, now_s: float) -> float:
        if self._first_s < 0:
            return 0.0
        seen = max(1 - exp((self._first_s - now_s) / _MEMORY_S), _LEAST_SHARE)
        return self._rows * exp(min(0.0, self.last_s - now_s) / _MEMORY_S) / (_MEMORY_S * seen)
