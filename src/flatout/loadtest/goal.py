"""A latency goal: "p99 50 ms" means that 99% of all requests are answered within 50 ms."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flatout.base.errors import UsageError
from flatout.base.units import parse_seconds, show_seconds

_FORM = re.compile(r"\s*p(\d{1,2}(?:\.\d+)?)\s*(?:<=?|:|=)?\s*(\S.*)", re.IGNORECASE)


@dataclass(frozen=True)
class LoadGoal:
    share: float  # 0.99
    limit_s: float

    @classmethod
    def parse(cls, text: str) -> LoadGoal:
        match = _FORM.fullmatch(text)
        if match is None or not 0 < float(match[1]) < 100:
            raise UsageError(f"--slo: expected a quantile and a duration, such as 'p99 50 ms', got {text!r}")
        try:
            limit_s = parse_seconds(match[2])
        except UsageError as error:
            raise UsageError(f"--slo: {error}") from error
        if limit_s <= 0:
            raise UsageError(f"--slo: expected a duration greater than 0, got {text!r}")
        return cls(float(match[1]) / 100, limit_s)

    @property
    def requests_needed(self) -> int:
        """So that 20 of them are slower than the quantile, and the next 20 do not move it much."""
        return round(20 / (1 - self.share))

    def __str__(self) -> str:
        return f"p{100 * self.share:g} {show_seconds(self.limit_s)}"
