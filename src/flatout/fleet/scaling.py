"""When a service gets more replicas: one rule, written into the autoscalers' objects and simulated in `scaling_simulation`.

Requests per second come first: they grow at once with the load and count requests that were refused too, so the rule sees
how much is wanted. CPU use saturates at 100%, whatever is wanted. Replicas take a minute to start, so the rate is also expected
to grow as fast as it has grown in the last hour, up to the highest of that hour: where crowds come, there is room for the next.
The queue time catches the rest: a node that is slower than the one that was measured, or requests that cost more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from flatout.base.errors import UsageError

BURST = 1.5  # the load may grow by this factor until a new replica answers, unless told otherwise
WINDOW_S = 30  # over which rates are taken: Prometheus has to look every 10 s at least
TREND = 2  # times the growth between two looks is added to the rate: new replicas answer only after their start
PEAK_S, LEAD_S = 3600, 60  # how much the load has grown within LEAD_S in the last PEAK_S is expected again
SPARE = 1.1  # a replica that has so much less than it holds at that peak
LOOK_S = 15  # between two looks of an autoscaler; Kubernetes' default
DOWN_AFTER_S = 300  # no replica is removed while any look within this time wanted it
UP_SHARE, UP_PODS, UP_PERIOD_S = 300, 4, 15  # whichever is more, in each period
DOWN_SHARE, DOWN_PERIOD_S = 10, 60
TOLERANCE = 0.1  # of the HorizontalPodAutoscaler: a smaller difference changes nothing
_WAITING = 0.5  # of the time that the goal leaves for waiting


@dataclass(frozen=True)
class ReplicaRange:
    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> ReplicaRange:
        first, colon, last = text.strip().partition(":")
        if not (first.isdigit() and (last.isdigit() if colon else True)):
            raise UsageError(f"--replicas must be a range such as 2:10, or a number without an autoscaler, got {text!r}")
        found = cls(int(first), int(last or first))
        if found.least < 1:
            raise UsageError(f"--replicas: a service needs at least 1 replica, got {text!r}")
        if found.least > found.most:
            raise UsageError(f"--replicas must be LEAST:MOST, got {text!r}; did you mean {last}:{first}?")
        return found

    @property
    def varies(self) -> bool:
        return self.least != self.most


@dataclass(frozen=True)
class ScalingRule:
    """`per_replica`: requests/s that a replica should have, and `peak_per_replica` at the expected peak. `queue_s`: the mean
    time in the queue that adds replicas."""

    per_replica: float
    peak_per_replica: float
    queue_s: float
    replicas: ReplicaRange

    @classmethod
    def of(
        cls, held_per_s: float, goal_s: float, batch_s: float | None, replicas: ReplicaRange, burst: float = BURST
    ) -> ScalingRule:
        """`held_per_s`: what one replica was measured to hold. `batch_s`: how long a batch takes; None: unknown, so half of the
        goal is left for waiting."""
        waiting_s = goal_s / 2 if batch_s is None else goal_s - batch_s
        return cls(held_per_s / burst, held_per_s / SPARE, _WAITING * waiting_s, replicas)

    def wanted(self, now: int, requests_per_s: float, queue_s: float, peak_per_s: float = 0.0) -> int:
        """As a HorizontalPodAutoscaler computes it: the largest of what each metric wants, within the limits."""
        by_peak = _proposed(now, peak_per_s / (self.peak_per_replica * max(1, now)))
        by_rate = _proposed(now, requests_per_s / (self.per_replica * max(1, now)))
        by_queue = _proposed(now, queue_s / self.queue_s)
        return min(max(by_rate, by_peak, by_queue, self.replicas.least), self.replicas.most)


def expected_rate(now_per_s: float, before_per_s: float) -> float:
    """`before_per_s`: at the look before."""
    return now_per_s + TREND * max(0.0, now_per_s - before_per_s)


def expected_peak(rates: Sequence[float]) -> float:
    """From the rates at the looks of the last PEAK_S, that of now last."""
    later = islice(rates, LEAD_S // LOOK_S, None)
    grown = [now / before if before else math.inf for before, now in zip(rates, later, strict=False) if now]
    return min(rates[-1] * max(grown, default=1.0), max(rates)) if rates[-1] else 0.0


def _proposed(now: int, ratio: float) -> int:
    return now if abs(ratio - 1) <= TOLERANCE else math.ceil(now * ratio - 1e-9)
