"""A scaling rule on recorded arrivals: how many requests miss the goal, and how many replicas that takes.

Replicas are a fluid: each answers at most so many requests per second, and what would wait longer than the goal leaves is
refused, as the server does. The autoscaler sees what it would see: averages of the last minute, every 15 s, replicas that start
late, and the limits of how fast it may add and remove them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flatout.base.errors import UsageError
from flatout.fleet import scaling
from flatout.fleet.scaling import ReplicaRange, ScalingRule

_MOST_S = 40 * 86400


@dataclass(frozen=True)
class ScalerView:
    """What an autoscaler knows: replicas that exist and that are ready, expected arrivals, the rates at all looks of the last
    hour, time in the queue, and of how many replicas the cores are used."""

    replicas: int
    ready: int
    requests_per_s: float
    rates: Sequence[float]
    queue_s: float
    used: float


@dataclass(frozen=True)
class Simulated:
    """`missed`: requests that were refused, or would have been late. `replicas`: the mean, started ones included."""

    requests: float
    missed: float
    replicas: float
    most: int

    @property
    def missed_share(self) -> float:
        return self.missed / self.requests if self.requests else 0.0


Wanted = Callable[[ScalerView], int]
Use = Callable[[float], float]  # from the share of what a replica holds to the share of its cores that it uses


def by_rule(rule: ScalingRule) -> Wanted:
    return lambda seen: rule.wanted(seen.replicas, seen.requests_per_s, seen.queue_s, scaling.expected_peak(seen.rates))


@dataclass(frozen=True)
class ReplicaModel:
    """`per_replica`: requests that a replica answers in a second. `waits_s`: how long one may wait. `use`: of its cores."""

    per_replica: float
    waits_s: float
    start_s: float
    use: Use = lambda load: load


def simulate(arrivals: Sequence[float], wanted: Wanted, replicas: ReplicaRange, model: ReplicaModel) -> Simulated:
    """`arrivals`: requests in each second."""
    first = math.ceil(arrivals[0] / model.per_replica)
    pool = _Pool(replicas, ready=min(max(replicas.least, first), replicas.most))
    looks: deque[tuple[float, float, float]] = deque(maxlen=scaling.WINDOW_S)
    backlog = missed = used = 0.0
    rates: deque[float] = deque([arrivals[0]], maxlen=scaling.PEAK_S // scaling.LOOK_S)
    most = 0
    for second, count in enumerate(arrivals):
        pool.start(second)
        capacity = pool.ready * model.per_replica
        answered = min(backlog + count, capacity)
        backlog += count - answered
        over = max(0.0, backlog - capacity * model.waits_s)
        backlog -= over
        missed += over
        looks.append((count, backlog / capacity, pool.ready * model.use(answered / capacity)))
        used += pool.size
        most = max(most, pool.size)
        if second % scaling.LOOK_S == scaling.LOOK_S - 1:
            rate, queue, cores = (sum(values) / len(looks) for values in zip(*looks, strict=True))
            expected = scaling.expected_rate(rate, rates[-1])
            rates.append(rate)
            seen = ScalerView(pool.size, pool.ready, expected, rates, queue, cores)
            pool.ask(wanted(seen), second, second + model.start_s)
    return Simulated(sum(arrivals), missed, used / len(arrivals), most)


@dataclass
class _Pool:
    """Replicas, with the limits that the manifest sets on how fast their number changes."""

    limits: ReplicaRange
    ready: int
    starting: list[float] = field(default_factory=list)  # when each is ready
    asked: deque[tuple[int, int]] = field(default_factory=deque)  # (second, wanted) of the last minutes
    sizes: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def size(self) -> int:
        return self.ready + len(self.starting)

    def start(self, now_s: float) -> None:
        self.ready += sum(one <= now_s for one in self.starting)
        self.starting = [one for one in self.starting if one > now_s]

    def ask(self, wanted: int, now_s: int, ready_s: float) -> None:
        self._change(wanted, now_s, ready_s)
        self.sizes.append((now_s, self.size))

    def _change(self, wanted: int, now_s: int, ready_s: float) -> None:
        self.asked.append((now_s, wanted))
        while self.asked[0][0] < now_s - scaling.DOWN_AFTER_S:
            self.asked.popleft()
        while self.sizes and self.sizes[0][0] < now_s - scaling.DOWN_PERIOD_S:
            self.sizes.popleft()
        if wanted > self.size:
            before = self._size_at(now_s - scaling.UP_PERIOD_S)
            room = max(before * (1 + scaling.UP_SHARE / 100), before + scaling.UP_PODS)
            self.starting += [ready_s] * max(0, min(wanted, math.ceil(room), self.limits.most) - self.size)
            return
        target = max(one for _, one in self.asked)  # nothing is removed that a look of the last minutes wanted
        before = self._size_at(now_s - scaling.DOWN_PERIOD_S)
        least = min(math.floor(before * (1 - scaling.DOWN_SHARE / 100)), before - 1)
        for _ in range(max(0, self.size - max(target, least, self.limits.least))):
            if self.starting:
                self.starting.pop()
            else:
                self.ready -= 1

    def _size_at(self, second: int) -> int:
        return next((size for at, size in self.sizes if at >= second), self.size)


def arrivals_of(path: Path) -> list[float]:
    """Requests in each second, from a file with the time in seconds of each request in a line, as `flatout load` takes it."""
    try:
        times = [float(line) for line in path.read_text().split()]
    except (OSError, ValueError) as error:
        raise UsageError(f"--arrivals: {path} must have one time in seconds a line: {error}") from error
    if not times or not all(math.isfinite(one) for one in times):
        raise UsageError(f"--arrivals: {path} has no times, or some that are no numbers")
    first = min(times)
    if max(times) - first > _MOST_S:
        raise UsageError(f"--arrivals: {path} is longer than {_MOST_S // 86400} days; are its times in seconds?")
    counts = [0.0] * (int(max(times) - first) + 1)
    for one in times:
        counts[int(one - first)] += 1
    return counts
