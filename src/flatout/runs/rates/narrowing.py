"""From a range test to one rate: short trainings over the whole schedule, first of many rates, then longer ones of the best.

A range test says which rates move the loss, not which one ends lowest: that depends on the budget and its schedule. So
candidates train for a part of the budget, with the schedule squeezed into it. Where many rates end within 2% of the best, their
middle is taken. Else the best and its neighbours train again, for the whole budget and in several orders of rows if there is
time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from flatout.runs.rates.short_runs import ShortRun

_FIRST_SHARE = 0.25  # of the budget, for the first look
_FEWEST_STEPS = 24
_COARSE, _MEDIUM, _FINE = 4.0, 2.0, math.sqrt(2.0)  # how far candidates are apart
_MOST_MOVES = 4
_ALIKE = 0.02  # losses this close to the best are as good
_WIDE = 4.0  # so many times the lowest of them is the highest: any of them will do
_CLOSE, _FINALISTS, _SEEDS = 0.05, 3, 3  # the best few, if they are that close, train with other orders of rows too
_TIME_OF_FIRST, _FIRST_TRAININGS, _TRAININGS = 0.3, 7, 5  # share of the time that is left; how many trainings have to fit in
_DRIFT, _MOST_DRIFT = 0.25, 0.5  # the best rate falls with the number of steps, by about this power and at most by that
_FARTHEST, _CLIFF = 4.0, 0.25

Kind = Literal["plateau", "best", "drifted"]
Train = Callable[[float, int, int], ShortRun]  # rate, steps, number of the seed


@dataclass(frozen=True)
class RateCandidate:
    """`loss`: mean over `seeds` trainings of `steps` steps."""

    rate: float
    steps: int
    seeds: int
    loss: float


@dataclass(frozen=True)
class Narrowed:
    """Rates from `low` to `high` ended within 2% of the best.

    `kind`: "plateau", the middle of many alike; "best", after the whole budget; "drifted", lowered for the rest of the budget.
    """

    rate: float
    low: float
    high: float
    kind: Kind
    candidates: tuple[RateCandidate, ...]
    steps: int
    seeds: int


class Narrowing:
    def __init__(self, train: Train, total_steps: int, left_s: Callable[[], float], step_s: float) -> None:
        """`left_s`: the time that is left; `step_s`: how long a step takes."""
        self._train, self._total, self._left_s, self._step_s = train, total_steps, left_s, step_s
        self._runs: dict[tuple[int, float], list[float]] = {}

    def narrow(self, start: float) -> Narrowed | None:
        """`start`: a rate that learns. None: there is no time for trainings that are long enough to tell."""
        wanted = min(self._total, max(_FEWEST_STEPS, math.ceil(_FIRST_SHARE * self._total)))
        steps = self._affordable(_FIRST_TRAININGS, wanted, _TIME_OF_FIRST)
        if steps < min(_FEWEST_STEPS, self._total):
            return None
        ranked = self._climbed([start / _COARSE, start, start * _COARSE], _COARSE, steps)
        ranked = self._climbed([*_rates(ranked), ranked[0].rate / _MEDIUM, ranked[0].rate * _MEDIUM], _MEDIUM, steps)
        if not math.isfinite(ranked[0].loss):
            return None
        rough, alike = ranked[0].rate, _alike(ranked)
        if steps >= wanted and alike[-1] / alike[0] >= _WIDE:
            return self._result(math.sqrt(alike[0] * alike[-1]), alike, "plateau", steps, 1)
        longer = self._affordable(_TRAININGS, self._total, 0.95)
        if longer < min(2 * steps, self._total):
            return self._result(self._drifted(rough, steps, _DRIFT), alike, "drifted", steps, 1)
        ranked = self._climbed([rough / _FINE**2, rough / _FINE, rough, rough * _FINE], _FINE, longer)
        ranked, seeds = self._repeated(ranked, longer)
        if longer >= self._total:
            return self._result(ranked[0].rate, _alike(ranked), "best", longer, seeds)
        seen = math.log(rough / ranked[0].rate) / math.log(longer / steps)
        power = (_DRIFT + min(_MOST_DRIFT, max(0.0, seen))) / 2
        rate = self._drifted(ranked[0].rate, longer, power) / (_FINE if self._at_the_edge(ranked[0], longer) else 1.0)
        return self._result(rate, _alike(ranked), "drifted", longer, seeds)

    def _climbed(self, rates: Sequence[float], apart: float, steps: int) -> list[RateCandidate]:
        """Best first. Goes on to lower or higher rates as long as the best is at an end."""
        rates = [float(f"{rate:.6g}") for rate in rates]  # so that a rate that is reached in two ways is one
        for rate in rates:
            self._run(rate, steps)
        ranked = self._ranked(rates, steps)
        for _ in range(_MOST_MOVES):
            lowest, highest = min(_rates(ranked)), max(_rates(ranked))
            if ranked[0].rate not in (lowest, highest) or self._left_s() < steps * self._step_s:
                break
            further = float(f"{lowest / apart if ranked[0].rate == lowest else highest * apart:.6g}")
            self._run(further, steps)
            ranked = self._ranked([*_rates(ranked), further], steps)
        return ranked

    def _repeated(self, ranked: list[RateCandidate], steps: int) -> tuple[list[RateCandidate], int]:
        """The best few again, with other orders of rows."""
        limit = ranked[0].loss + _CLOSE * abs(ranked[0].loss)
        finalists = [one.rate for one in ranked[:_FINALISTS] if one.loss <= limit]
        seeds = 1
        while len(finalists) > 1 and seeds < _SEEDS and self._left_s() > len(finalists) * steps * self._step_s:
            for rate in finalists:
                self._run(rate, steps, seeds)
            seeds += 1
        return self._ranked(finalists, steps), seeds

    def _at_the_edge(self, best: RateCandidate, steps: int) -> bool:
        """Whether the next higher rate was far worse: a longer training meets that edge at a lower rate."""
        higher = [rate for length, rate in self._runs if length == steps and rate > best.rate]
        return bool(higher) and self._candidate(min(higher), steps).loss > best.loss + _CLIFF * abs(best.loss)

    def _drifted(self, rate: float, steps: int, power: float) -> float:
        return rate / min(_FARTHEST, math.pow(self._total / steps, power))

    def _affordable(self, trainings: int, wanted: int, share: float) -> int:
        return min(wanted, int(share * self._left_s() / (trainings * self._step_s)))

    def _run(self, rate: float, steps: int, seed: int = 0) -> None:
        known = self._runs.setdefault((steps, rate), [])
        if len(known) > seed:
            return
        done = self._train(rate, steps, seed)
        known.append(done.loss)
        if math.isfinite(done.loss):
            self._step_s = max(0.5 * self._step_s, done.seconds / steps)

    def _ranked(self, rates: Sequence[float], steps: int) -> list[RateCandidate]:
        """Best first. Of equal ones the lowest rate."""
        found = [self._candidate(rate, steps) for rate in dict.fromkeys(rates)]
        return sorted(found, key=lambda one: (one.loss, one.rate))

    def _candidate(self, rate: float, steps: int) -> RateCandidate:
        losses = self._runs[steps, rate]
        return RateCandidate(rate, steps, len(losses), sum(losses) / len(losses))

    def _result(self, rate: float, alike: Sequence[float], kind: Kind, steps: int, seeds: int) -> Narrowed:
        every = tuple(self._candidate(one, length) for length, one in sorted(self._runs))
        return Narrowed(rate, min(rate, alike[0]), max(rate, alike[-1]), kind, every, steps, seeds)


def _rates(candidates: Sequence[RateCandidate]) -> list[float]:
    return [one.rate for one in candidates]


def _alike(ranked: Sequence[RateCandidate]) -> list[float]:
    """The neighbours of the best one, lowest rate first, whose loss is as good."""
    best = ranked[0]
    limit = best.loss + _ALIKE * abs(best.loss)
    in_order = sorted(ranked, key=lambda one: one.rate)
    place = in_order.index(best)
    start = end = place
    while start > 0 and in_order[start - 1].loss <= limit:
        start -= 1
    while end + 1 < len(in_order) and in_order[end + 1].loss <= limit:
        end += 1
    return [one.rate for one in in_order[start : end + 1]]
