"""What the records of a run say: rates, latencies, outcomes, and the same by the second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flatout.loadtest.crew import LoadJob, Recorded
from flatout.loadtest.goal import LoadGoal
from flatout.loadtest.outcomes import ADMISSION_REFUSED, FIRST_BAD, FIRST_GOOD, FIRST_STATUS, RequestFailure

Values = npt.NDArray[np.float64]
QUANTILES = (0.5, 0.9, 0.99, 0.999)
ALL_QUANTILES = (*(n / 100 for n in range(100)), 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0)


@dataclass(frozen=True)
class LoadSpan:
    """Requests that were scheduled in a stretch of time. Latencies are of good answers; NaN if there are none."""

    from_s: float
    to_s: float
    scheduled: int
    good: int
    p50_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class LoadFigures:
    """After the warm-up. Latencies are of good answers (status 200 to 399), sorted, from the scheduled time."""

    warm_s: float
    measured_s: float
    scheduled: int
    unanswered: int  # without an outcome when the run was interrupted or a closed loop ended
    achieved_rate: float  # good answers that came in within the measured time
    latencies_s: Values
    lags_s: Values
    statuses: dict[int, int]
    failures: dict[RequestFailure, int]
    spans: tuple[LoadSpan, ...]

    @property
    def offered_rate(self) -> float:
        return self.scheduled / self.measured_s

    @property
    def good(self) -> int:
        return len(self.latencies_s)

    @property
    def admission_refused(self) -> int:
        return self.statuses.get(ADMISSION_REFUSED, 0)

    @property
    def not_good(self) -> int:
        """Every request that got another answer than a good one, or none."""
        return self.scheduled - self.good - self.unanswered

    def latency_s(self, share: float) -> float:
        return _quantile(self.latencies_s, share)

    def lag_s(self, share: float) -> float:
        return _quantile(self.lags_s, share)

    @property
    def mean_s(self) -> float:
        return float(self.latencies_s.mean()) if self.good else float("nan")

    def share_within(self, goal: LoadGoal) -> float:
        """Of all requests: one without a good answer was not in time."""
        ended = self.scheduled - self.unanswered
        return float(np.searchsorted(self.latencies_s, goal.limit_s, side="right")) / ended if ended else 0.0


def figures(job: LoadJob, recorded: Recorded) -> LoadFigures:
    end_s = min(job.seconds, recorded.ended_s) if recorded.was_interrupted else job.seconds
    warm_s = min(job.warm_s, end_s / 2)
    measured_s = max(end_s - warm_s, 1e-9)
    records = recorded.records
    rows = records[np.searchsorted(records[:, 0], warm_s) :]
    good = _is_good(rows)
    finished_s = records[:, 0] + records[:, 2]
    in_time = _is_good(records) & (finished_s >= warm_s) & (finished_s < end_s)
    if job.closed:
        scheduled = len(rows)
    else:
        scheduled = int(np.searchsorted(job.times_s, end_s) - np.searchsorted(job.times_s, warm_s))
        if not recorded.was_interrupted:
            scheduled = len(rows)  # all have an outcome
    codes, counts = np.unique(rows[:, 3].astype(int), return_counts=True)
    found = dict(zip(codes.tolist(), counts.tolist(), strict=True))
    return LoadFigures(
        warm_s=warm_s,
        measured_s=measured_s,
        scheduled=scheduled,
        unanswered=max(0, scheduled - len(rows)),
        achieved_rate=float(in_time.sum()) / measured_s,
        latencies_s=np.sort(rows[good, 2]),
        lags_s=np.sort(rows[:, 1]),
        statuses={code: count for code, count in found.items() if code >= FIRST_STATUS},
        failures={RequestFailure(code): count for code, count in found.items() if code < FIRST_STATUS},
        spans=spans(rows, warm_s, end_s, 1.0),
    )


def spans(rows: Values, from_s: float, to_s: float, every_s: float) -> tuple[LoadSpan, ...]:
    """One for every stretch; a short rest at the end belongs to the last."""
    count = max(1, round((to_s - from_s) / every_s))
    edges = np.append(from_s + every_s * np.arange(count), to_s)
    places = np.searchsorted(rows[:, 0], edges)
    return tuple(
        _span(rows[first:last], float(begin), float(end))
        for first, last, begin, end in zip(places, places[1:], edges, edges[1:], strict=False)
    )


def merged_spans(found: Sequence[LoadSpan], most: int) -> list[Sequence[LoadSpan]]:
    """At most this many groups of neighbours, for a screen."""
    size = max(1, -(-len(found) // most))
    return [found[place : place + size] for place in range(0, len(found), size)]


def _span(rows: Values, begin_s: float, end_s: float) -> LoadSpan:
    latencies_s = np.sort(rows[_is_good(rows), 2])
    quantiles = [_quantile(latencies_s, share) for share in (0.5, 0.99, 1.0)]
    return LoadSpan(begin_s, end_s, len(rows), len(latencies_s), *quantiles)


def _is_good(rows: Values) -> npt.NDArray[np.bool_]:
    return (rows[:, 3] >= FIRST_GOOD) & (rows[:, 3] < FIRST_BAD)


def _quantile(ordered: Values, share: float) -> float:
    """The smallest value that this share of all does not exceed; no value between two that were measured."""
    if len(ordered) == 0:
        return float("nan")
    return float(ordered[min(len(ordered) - 1, max(0, int(np.ceil(share * len(ordered) - 1e-9)) - 1))])
