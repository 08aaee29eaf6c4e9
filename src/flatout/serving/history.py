"""The last minute of the counters, second by second: rates and quantiles of what happens now."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from flatout.serving.counters import PARTS, SharedCounters, SummedTally

_SECONDS = 60


@dataclass(frozen=True)
class Look:
    """What was known at one time: sums of the fronts by model, what executors said, and seconds of CPU."""

    at_s: float
    tallies: Mapping[str, SummedTally]
    status: Mapping[str, Any]
    fronts_cpu_s: float

    def of_model(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.status.get("models", {}).get(name, {})
        return found


@dataclass(frozen=True)
class Between:
    """Two looks, and what happened between them."""

    before: Look
    after: Look

    @property
    def seconds(self) -> float:
        return max(1e-6, self.after.at_s - self.before.at_s)

    def requests_per_s(self, name: str) -> float:
        return self._more(name, lambda tally: tally.requests) / self.seconds

    def rows_per_s(self, name: str) -> float:
        return self._more(name, lambda tally: tally.rows) / self.seconds

    def quantile_s(self, name: str, part: str, share: float) -> float | None:
        return self.after.tallies[name].quantile_s(part, share, self.before.tallies.get(name))

    def mean_s(self, name: str, part: str) -> float:
        requests = self._more(name, lambda tally: tally.requests)
        return self._more(name, lambda tally: tally.sum_s(part)) / requests if requests else 0.0

    def batch_rows(self, name: str) -> float:
        rows, batches = (self._said(name, key) for key in ("rows", "batches"))
        return rows / batches if batches else 0.0

    def device_share(self) -> float:
        """Of the time, how much the device worked on batches."""
        names = self.after.status.get("models", {})
        busy_s = sum(self._said(name, "compute_s") + self._said(name, "copy_s") for name in names)
        return min(1.0, busy_s / self.seconds / max(1, int(self.after.status.get("executors", 1))))

    def front_share(self) -> float:
        """Of one core for each front."""
        fronts = max(1, int(self.after.status.get("fronts", 1)))
        return self._fronts_s() / self.seconds / fronts

    def core_share(self) -> float:
        """Of all cores, by this server alone."""
        before_s, after_s = (one.status.get("executor_cpu_s", 0.0) for one in (self.before, self.after))
        executor_s = max(0.0, after_s - before_s) if before_s else 0.0  # at first nothing is known, also of its start
        all_s = float(executor_s) + self._fronts_s()
        return all_s / self.seconds / max(1, int(self.after.status.get("cores", 1)))

    def _fronts_s(self) -> float:
        return max(0.0, float(self.after.fronts_cpu_s - self.before.fronts_cpu_s))  # a front that was replaced begins at 0

    def reasons(self, name: str) -> dict[str, int]:
        before = self.before.of_model(name).get("reasons", {})
        return {key: count - before.get(key, 0) for key, count in self.after.of_model(name).get("reasons", {}).items()}

    def _said(self, name: str, key: str) -> float:
        more = self.after.of_model(name).get(key, 0) - self.before.of_model(name).get(key, 0)
        return float(max(0, more))

    def _more(self, name: str, read: Any) -> float:
        before = self.before.tallies.get(name)
        return float(read(self.after.tallies[name]) - (read(before) if before is not None else 0))


class History:
    def __init__(self, counters: SharedCounters) -> None:
        self._counters = counters
        self._looks: deque[Look] = deque(maxlen=_SECONDS + 1)

    def look(self, places: Mapping[str, int], status: Mapping[str, Any]) -> None:
        tallies = {name: self._counters.summed(place) for name, place in places.items()}
        self._looks.append(Look(time.monotonic(), tallies, status, self._counters.cpu_s()))

    def last(self, seconds: float) -> Between | None:
        """What happened in about the last `seconds`; None before there are two looks."""
        if len(self._looks) < 2:
            return None
        after = self._looks[-1]
        before = next(
            one
            for one in reversed(self._looks)
            if one is not after and (after.at_s - one.at_s >= seconds or one is self._looks[0])
        )
        return Between(before, after)

    def seconds(self) -> list[Between]:
        return [Between(before, after) for before, after in pairwise(self._looks)]


def parts_of(between: Between, name: str) -> dict[str, tuple[float, float, float]]:
    """Of each part of a request: median, 99th percentile and mean, in seconds."""
    found = {}
    for part in PARTS:
        median, high = (between.quantile_s(name, part, share) for share in (0.5, 0.99))
        found[part] = (median or 0.0, high or 0.0, between.mean_s(name, part))
    return found
