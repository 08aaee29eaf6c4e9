"""A latency goal as people write it: "p99 50 ms"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import NormalDist

from flatout.base.errors import UsageError
from flatout.base.units import parse_seconds, show_seconds

_GOAL = re.compile(r"\s*(?:p([0-9]{1,2}(?:\.[0-9]+)?)\s*(?:<=|<|:|=)?\s+)?(\S.*?)\s*", re.IGNORECASE)
_EXAMPLES = "such as 'p99 50 ms', '50 ms' or 'p95 0.1 s'"
_USUAL = 0.99
_SHORTEST_S = 1e-4


@dataclass(frozen=True)
class LatencyGoal:
    """This share of the requests is answered within `seconds`."""

    seconds: float
    share: float = _USUAL

    @classmethod
    def parse(cls, text: str) -> LatencyGoal:
        match = _GOAL.fullmatch(text)
        if match is None:
            raise UsageError(f"expected a latency goal {_EXAMPLES}, got {text!r}")
        share = _USUAL if match[1] is None else float(match[1]) / 100
        try:
            seconds = parse_seconds(match[2])
        except UsageError as error:
            raise UsageError(f"expected a latency goal {_EXAMPLES}, got {text!r}") from error
        if not 0.5 <= share < 1:
            raise UsageError(f"expected a percentile from p50 to p99.9 in a latency goal {_EXAMPLES}, got {text!r}")
        if seconds < _SHORTEST_S:
            raise UsageError(f"expected a latency goal of at least {show_seconds(_SHORTEST_S)}, got {text!r}")
        return cls(seconds, share)

    @property
    def deviations(self) -> float:
        """How many standard deviations above the mean this share of the requests ends."""
        return NormalDist().inv_cdf(self.share)

    def __str__(self) -> str:
        time = f"{1e3 * self.seconds:g} ms" if self.seconds < 1 else f"{self.seconds:g} s"
        return f"p{100 * self.share:g} {time}"
