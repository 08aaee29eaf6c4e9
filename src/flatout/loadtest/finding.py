"""The highest rate that holds a latency goal: double until it is missed, bisect, then repeat the best to confirm it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flatout.base.units import show_seconds
from flatout.loadtest.goal import LoadGoal
from flatout.loadtest.measuring import LoadResult

_FINE = 1.05  # the ratio of the lowest missed and the highest held rate at the end
_REPEATS = 3  # of the best rate, the first one included
_ATTEMPTS = 6
_ENOUGH = 0.98  # of the offered rate
_SHORTEST_S, _LONGEST_S = 2.0, 20.0
_SLOWEST, _FASTEST = 0.5, 2e6

Measure = Callable[[float, float], LoadResult]  # (rate, measured seconds)


@dataclass(frozen=True)
class LoadStep:
    """`why` is empty if the goal held."""

    result: LoadResult
    rate: float
    why: str
    is_ours: bool = False  # missed, but the generator was the limit

    @property
    def held(self) -> bool:
        return not self.why


@dataclass(frozen=True)
class HighestRate:
    """`rate` None: none held. `missed`: the lowest rate that did not hold."""

    rate: float | None
    missed: float | None
    confirmed: int  # how often in a row it held
    steps: tuple[LoadStep, ...]
    was_interrupted: bool = False

    @property
    def is_generator_limited(self) -> bool:
        return any(step.is_ours and step.rate == self.missed for step in self.steps)


class _Interrupted(Exception):
    pass


class RateSearch:
    def __init__(self, measure: Measure, goal: LoadGoal, step_s: float | None, say: Callable[[LoadStep], None]) -> None:
        self._measure, self._goal, self._step_s, self._say = measure, goal, step_s, say
        self._steps: list[LoadStep] = []
        self._held: float | None = None
        self._missed: float | None = None

    def run(self, first_rate: float) -> HighestRate:
        interrupted = False
        try:
            self._ramp(first_rate)
            self._bisect()
            self._confirm()
        except _Interrupted:
            interrupted = True
        held = [step.rate for step in self._steps if step.held and (self._missed is None or step.rate < self._missed)]
        best = max(held, default=None)
        return HighestRate(best, self._missed, 0 if best is None else held.count(best), tuple(self._steps), interrupted)

    def _ramp(self, rate: float) -> None:
        while _SLOWEST <= rate <= _FASTEST:
            if self._holds(rate):
                self._held = rate
                if self._missed is not None:
                    return
                rate *= 2
            else:
                self._missed = rate
                if self._held is not None:
                    return
                rate /= 2

    def _bisect(self) -> None:
        while self._held is not None and self._missed is not None and self._missed / self._held > _FINE:
            rate = float(f"{math.sqrt(self._held * self._missed):.3g}")
            if not self._held < rate < self._missed:
                return
            if self._holds(rate):
                self._held = rate
            else:
                self._missed = rate

    def _confirm(self) -> None:
        """The best has to hold again. If it does not, it counts as missed, and rates lower by 5%, 10%, 20% are tried."""
        down = _FINE
        for _ in range(_ATTEMPTS):
            if self._held is None:
                return
            times = sum(step.held and step.rate == self._held for step in self._steps)
            while times < _REPEATS and self._step(self._held).held:
                times += 1
            if times >= _REPEATS:
                return
            self._missed, self._held = self._held, self._held / down
            down += down - 1

    def _holds(self, rate: float) -> bool:
        """A miss has to repeat itself: one may be an accident of the machine."""
        return self._step(rate).held or self._step(rate).held

    def _step(self, rate: float) -> LoadStep:
        seconds = self._step_s or min(_LONGEST_S, max(_SHORTEST_S, self._goal.requests_needed / rate, 50 * self._goal.limit_s))
        result = self._measure(rate, seconds)
        if result.recorded.was_interrupted:
            raise _Interrupted
        why = _miss(result, self._goal)
        step = LoadStep(result, rate, why, bool(why) and result.generator_problem is not None)
        self._steps.append(step)
        self._say(step)
        return step


def _miss(result: LoadResult, goal: LoadGoal) -> str:
    """As everywhere, a request without a good answer was not in time; the goal says how many may be late."""
    found = result.figures
    if found.share_within(goal) < goal.share:
        latency_s = found.latency_s(goal.share)
        if latency_s > goal.limit_s:
            return f"p{100 * goal.share:g} was {show_seconds(latency_s)}"
        return f"{found.not_good:,} of {found.scheduled:,} requests got no good answer"
    # as many as this may rightly be on their way when the clock stops
    on_their_way = found.offered_rate * goal.limit_s
    if (found.achieved_rate * found.measured_s + found.not_good + on_their_way) < _ENOUGH * found.scheduled:
        return f"only {found.achieved_rate:,.0f}/s were answered"
    return ""
