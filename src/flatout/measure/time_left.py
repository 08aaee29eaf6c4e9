"""How much longer a run takes, from its events: the current speed of the steps, with one-off costs counted separately.

Compiling, start-up and the first steps say nothing about later steps. Evaluations and checkpoints happen again: each one still
due is expected to take as long as the earlier ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from flatout.base.events import Event

_WARM_S, _WARM_SHARE = 0.3, 0.05  # of steps after the first log point, or this share of the run: enough to show a speed
_RECENT_SHARE = 0.5  # of the time spent on steps so far: the speed of these steps predicts the rest
_RECENT_AT_LEAST_S, _RECENT_AT_MOST_S = 5.0, 300.0
_INTERVALS = 40  # the recent time is stored in, however often a run logs
_CHANGED_AFTER, _CHANGED_BY = 8, 1.15  # intervals in a row that are all slower, or all faster, by this factor
_SUSPECT = 2.0  # times slower than usual: may have compiled, which is reported after the log point
_EVALUATION_COST = 1 / 3  # of training on a sample (one forward of three passes); used until an evaluation was timed
_EVALUATIONS_KEPT = 3


@dataclass
class _Interval:
    """Steps between two log points, without one-off costs."""

    from_step: int
    to_step: int
    samples: float
    seconds: float

    @property
    def sample_s(self) -> float:
        return self.seconds / self.samples

    def extend(self, other: _Interval) -> None:
        self.to_step = other.to_step
        self.samples += other.samples
        self.seconds += other.seconds


@dataclass(frozen=True)
class _LogPoint:
    t: float
    step: int
    samples: int
    done: float


class TimeLeft:
    """Call it with every event of a run in order; `seconds` is the time left at the last event, None while unknown."""

    def __init__(self) -> None:
        self.may_end_early = False  # by a target or early stopping: the time left is then an upper bound
        self._counted = True
        self._evaluate_every: float | None = None
        self._evaluation_rows = self._evaluated_samples = 0
        self._forget()

    def _forget(self) -> None:
        """At a start or resume: earlier measurements belong to another process."""
        self._first: _Interval | None = None
        self._steady: list[_Interval] = []
        self._steady_s = 0.0
        self._suspect: _Interval | None = None
        self._points: deque[_LogPoint] = deque()
        self._evaluations_s: deque[float] = deque(maxlen=_EVALUATIONS_KEPT)
        self._blocked_s: dict[int, float] = {}  # by checkpoints of steps that are not logged yet
        self._all_blocked_s = self._final_save_s = 0.0
        self._start: _LogPoint | None = None
        self._last: _LogPoint | None = None  # or the start: the next interval begins here
        self._clean_from_s = 0.0  # when the last one-off cost ended
        self._first_step_apart = False

    def __call__(self, event: Event) -> None:
        kind = event["kind"]
        if kind in ("started", "resumed"):
            self._begin(event)
        elif kind == "step":
            self._log_point(event)
        elif kind == "evaluation":
            self._evaluated(event)
        elif kind == "compiled":
            self._compiled(event)
        elif kind == "checkpoint_saved":
            self._saved(event)
        elif kind == "rolled_back":
            self._last = None  # the sample count went back: no interval to the next log point
            self._points.clear()

    @property
    def seconds(self) -> float | None:
        now = self._points[-1] if self._points else None
        if now is None or not 0 < now.done < 1:
            return None
        sample_s = self._sample_s()
        if not self._counted:
            spent = self._spent_left_s(now)
            return None if spent is None else spent + self._evaluation_s(sample_s) + self._final_save_s
        if sample_s is None or (now.done < _WARM_SHARE and _total_s(self._steady) < _WARM_S):
            return None
        total = now.samples / now.done
        steps_s = (total - now.samples) * sample_s
        evaluations_s = self._evaluations_to_come(total) * self._evaluation_s(sample_s)
        return steps_s * (1 + self._save_share()) + evaluations_s + self._final_save_s

    # ---- reading events ----

    def _begin(self, event: Event) -> None:
        self._forget()
        self._counted = event.get("total_samples") is not None
        self._evaluate_every = event.get("evaluate_every_samples")
        self._evaluation_rows = event.get("evaluation_rows") or 0
        self.may_end_early = bool(event.get("may_end_early"))
        self._clean_from_s = event["t"]
        self._last = _LogPoint(event["t"], event.get("step", 0), event.get("samples", 0), 0.0)
        self._evaluated_samples = self._last.samples
        self._start = self._last if event["kind"] == "started" else None

    def _log_point(self, event: Event) -> None:
        now = _LogPoint(event["t"], event["step"], event["samples"], event["done"])
        if self._last is not None and now.step > self._last.step:
            self._add(self._last, now)
        self._last, self._clean_from_s, self._first_step_apart = now, now.t, False
        self._points.append(now)
        while len(self._points) > 2 and now.t - self._points[1].t >= self._recent_s:
            self._points.popleft()

    def _add(self, before: _LogPoint, now: _LogPoint) -> None:
        steps, samples, seconds = now.step - before.step, now.samples - before.samples, now.t - self._clean_from_s
        apart = steps - 1 if self._first_step_apart else steps
        interval = _Interval(before.step, now.step, samples * apart / steps, seconds)
        if self._first is None:
            self._first = interval
        elif apart:
            self._settle()
            usual_s = self._sample_s()
            self._suspect = interval if usual_s is not None and interval.sample_s > _SUSPECT * usual_s else None
            if self._suspect is None:
                self._keep(interval)

    def _settle(self) -> None:
        """No one-off cost was reported for the slow interval, so later steps may be as slow: count it."""
        if self._suspect is not None:
            self._keep(self._suspect)
            self._suspect = None

    def _keep(self, interval: _Interval) -> None:
        interval.seconds = max(interval.seconds - self._blocked_s.pop(interval.from_step, 0.0), 0.0)
        self._steady_s += interval.seconds
        if self._steady and self._steady[-1].seconds < self._recent_s / _INTERVALS:
            self._steady[-1].extend(interval)
        else:
            self._steady.append(interval)
        if self._has_changed():
            del self._steady[:-_CHANGED_AFTER]
        while _total_s(self._steady) - self._steady[0].seconds >= self._recent_s:
            del self._steady[0]

    def _has_changed(self) -> bool:
        """True if all recent intervals are slower, or all faster, than the earlier ones: more than noise."""
        recent, older = self._steady[-_CHANGED_AFTER:], self._steady[:-_CHANGED_AFTER]
        if not older:
            return False
        usual_s = _total_s(older) / sum(interval.samples for interval in older)
        slower = all(interval.sample_s > usual_s * _CHANGED_BY for interval in recent)
        return slower or all(interval.sample_s < usual_s / _CHANGED_BY for interval in recent)

    def _evaluated(self, event: Event) -> None:
        if self._last is not None:
            self._evaluations_s.append(event["t"] - self._clean_from_s)
        self._evaluated_samples = event["samples"]
        self._clean_from_s = event["t"]

    def _compiled(self, event: Event) -> None:
        """Compiling is reported after its step: it was in the first step after the last log point, or before that log point."""
        before_the_log_point = bool(self._points) and event["step"] == self._points[-1].step
        if before_the_log_point:
            self._suspect = None
        else:
            self._first_step_apart = True
        self._clean_from_s = event["t"]

    def _saved(self, event: Event) -> None:
        self._final_save_s = event["seconds"]
        if self._points:  # the save at the start happens once
            self._all_blocked_s += event["blocked_s"]
            self._take_off(event["step"], event["blocked_s"])

    def _take_off(self, step: int, seconds: float) -> None:
        """Subtract the time that a checkpoint blocked the loop. It is reported when written, often several log points later."""
        kept = next((i for i in reversed(self._steady) if i.from_step <= step < i.to_step), None)
        if kept is None:
            self._blocked_s[step] = seconds
        else:
            kept.seconds = max(kept.seconds - seconds, 0.0)

    # ---- predicting ----

    @property
    def _recent_s(self) -> float:
        return min(max(_RECENT_AT_LEAST_S, _RECENT_SHARE * self._steady_s), _RECENT_AT_MOST_S)

    def _sample_s(self) -> float | None:
        known = self._steady
        if self._first is not None and _total_s(known) < _WARM_S:
            known = [self._first, *known]
        samples = sum(interval.samples for interval in known)
        return _total_s(known) / samples if samples else None

    def _spent_left_s(self, now: _LogPoint) -> float | None:
        """Time left of a budget of time, money or energy, which all work uses up, not only steps."""
        before = self._points[0] if len(self._points) > 1 else self._start or now
        spent = now.done - before.done
        return (now.t - before.t) * (1 - now.done) / spent if spent > 0 else None

    def _evaluations_to_come(self, total: float) -> int:
        """Evaluations still due, including the one at the end if there is evaluation data."""
        if not self._evaluation_rows:
            return 0
        if not self._evaluate_every:
            return 1
        due = int(total // self._evaluate_every) - int(self._evaluated_samples // self._evaluate_every)
        return due + (total % self._evaluate_every > 0)

    def _evaluation_s(self, sample_s: float | None) -> float:
        timed = list(self._evaluations_s)
        if timed:
            return fmean(timed[1:] or timed)  # the first one may have compiled
        return self._evaluation_rows * (sample_s or 0.0) * _EVALUATION_COST

    def _save_share(self) -> float:
        """Time that checkpoints blocked the loop, as a share of the time for steps."""
        return self._all_blocked_s / max(self._steady_s, self._all_blocked_s) if self._all_blocked_s else 0.0


def _total_s(intervals: Iterable[_Interval]) -> float:
    return sum(interval.seconds for interval in intervals)
