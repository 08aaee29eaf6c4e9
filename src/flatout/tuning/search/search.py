"""What to train next: waves of new trials, compared at a few steps of the full schedule; the best of them go on to the next.

The first wave covers the space evenly and measures how early ranks are stable. From then on a model of the results chooses new
trials, and which of the old ones go on. The same seed and the same answers give the same decisions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flatout.base.errors import UsageError
from flatout.tuning.search.draws import Draws, expected_improvement
from flatout.tuning.search.features import Array, features_of
from flatout.tuning.search.history import SearchHistory
from flatout.tuning.search.ladder import RankCheck, checkpoints, compare_ranks
from flatout.tuning.search.model import Constants, Model
from flatout.tuning.search.trials import Progress, Rung, RungAnswer, Trial
from flatout.tuning.space.space import Space

_FIRST_WAVE, _WAVE, _MOST_WAVE = 16, 8, 64  # trials; a later wave is wider if the budget allows for many
_WAVES = 2.5  # whole trials that are left of the budget, for each trial of a wave
_MOST_TOGETHER, _FEWEST_WAVES = 256, 5
_UNLIMITED = 1_000_000
_SMALL = 1e-9


class TrialSearch:
    def __init__(
        self,
        space: Space,
        *,
        total: int,
        higher_is_better: bool,
        seed: int,
        most_trials: int | None = None,
        start: Sequence[Mapping[str, Any]] = (),
        earlier: Sequence[tuple[Mapping[str, Any], float]] = (),
    ) -> None:
        if total < 1:
            raise UsageError(f"a trial needs at least 1 step, got {total}")
        self.space, self.total, self.sign = space, total, 1.0 if higher_is_better else -1.0
        self.ladder = checkpoints(total)
        self.first = 0  # the place of the first rung on the ladder
        self.most_trials = most_trials if most_trials is not None else _UNLIMITED
        self.draws = Draws(space, seed)
        self.trials: dict[int, Progress] = {}
        self.earlier = [(space.units_of(point), self.sign * score) for point, score in earlier if _fits(space, point)]
        self.spent, self.steps = 0.0, 0
        self.asked: Rung | None = None
        self.checks: list[RankCheck] = []
        self.why = "not measured yet"
        self.plan: list[int] = []  # places on the ladder of the rungs that are left of this wave
        self.measuring = True
        self.constants: Constants | None = None
        self.sampler_s, self.waves, self.done = 0.0, 0, False
        self.width = _FIRST_WAVE
        self.together = 1  # trials that cost about as much as one: the caller's, who knows how they are trained
        self.first_points = [space.units_of(point) for point in start if self.draws.given(point)]

    # ---- the two calls ----

    def next(self) -> Rung | None:
        """None: the search is finished. The same rung until it is answered."""
        if self.asked is None and not self.done:
            began_s = time.perf_counter()
            self.asked = self._next()
            self.done = self.asked is None
            self.sampler_s += time.perf_counter() - began_s
        return self.asked

    def tell(self, answer: RungAnswer) -> None:
        if self.asked is None:
            raise UsageError("tell() answers a rung that next() gave; none is open")
        lacks = [one.number for one in self.asked.trials if one.number not in answer.scores]
        if lacks:
            raise UsageError(f"the answer needs a score, or None, for each trial of the rung; {lacks} are missing")
        for one in self.asked.trials:
            trial, score = self.trials[one.number], answer.scores[one.number]
            self.steps += self.asked.to - trial.at
            if score is None or not math.isfinite(score):
                trial.failed = True
            else:
                trial.scores[self.asked.to] = self.sign * float(score)
        self.spent = max(self.spent, answer.spent)
        self._measure(self.asked.to)
        self.asked = None

    def best(self, count: int) -> list[tuple[Trial, float]]:
        """The best trials at full length with their scores."""
        finished = sorted(self._finished(), key=lambda one: (-one.score, one.trial.number))
        return [(one.trial, self.sign * one.score) for one in finished[:count]]

    @property
    def history(self) -> SearchHistory:
        failed = sum(one.failed for one in self.trials.values())
        finished = len(self._finished())
        asked = {one.number for one in self.asked.trials} if self.asked else set()
        alive = sum(not one.failed and one.at < self.total and number in asked for number, one in self.trials.items())
        dropped = len(self.trials) - failed - finished - alive
        first = 0 if self.measuring else self.ladder[self.first]
        return SearchHistory(
            tuple(self.checks), first, self.why, len(self.trials), alive, dropped, failed, finished, self.sampler_s, self.waves
        )

    # ---- rungs ----

    def _next(self) -> Rung | None:
        if not self.trials:
            return self._new_trials(max(self.width, min(self.together, _MOST_TOGETHER)))
        if self.spent >= 1:
            return None
        if self.measuring:
            going = [one for one in self.trials.values() if not one.failed]
            if going and self._fits_in(going, self.first + 1, share=0.5):
                return self._rung(going, self.first + 1)
            self._settle("the budget ended before ranks could be compared at two steps")
        while self.plan:
            place = self.plan.pop(0)
            chosen = self._promoted(place, math.ceil(self.width / 2 ** (place - self.first)))
            if chosen and self._fits_in(chosen, place):
                return self._rung(chosen, place)
        if len(self.ladder) == 1:  # there is nothing to promote: what is left is for new trials alone
            return self._new_trials(int(min(self.width, self._steps_left() / self.total)))
        if self._wave_steps(self.width) <= self._steps_left() and (new := self._new_trials(self.width)):
            return new
        if math.isinf(self._steps_left()) and self._finished():
            return None  # no budget of time is left over that more trainings could use
        return self._last()

    def _new_trials(self, count: int) -> Rung | None:
        count = min(count, self.most_trials - len(self.trials))
        if count <= 0:
            return None
        units = self.first_points[:count]
        self.first_points = self.first_points[count:]
        if self.trials or self.earlier:
            model, incumbent, best = self._model(fit=True)
            if model is not None:
                units += self.draws.promising(count - len(units), model, best, incumbent)
        units += self.draws.even(count - len(units)) if count > len(units) else []
        if not units:
            return None
        self.waves += 1
        new = []
        for row in units:
            trial = Progress(Trial(len(self.trials), self.space.point(row)), row)
            self.trials[trial.trial.number] = trial
            new.append(trial)
        if not self.measuring:
            self.plan = list(range(self.first + 1, len(self.ladder)))
        return self._rung(new, self.first)

    def _promoted(self, place: int, count: int) -> list[Progress]:
        """Of all trials that stand below that rung, those from which the model expects most."""
        below = [one for one in self.trials.values() if not one.failed and one.scores and one.at < self.ladder[place]]
        if not below:
            return []
        model, incumbent, _ = self._model()
        if model is None:
            order = np.argsort([-one.score for one in below], kind="stable")
        else:
            mean, deviation = model.at_the_end(self._features([one.units for one in below]))
            order = np.argsort(-expected_improvement(mean, deviation, incumbent), kind="stable")
        return [below[place] for place in order[:count]]

    def _last(self) -> Rung | None:
        """With what is left, the most promising trials go to the end."""
        for count in (3, 2, 1):
            chosen = self._promoted(len(self.ladder) - 1, count)
            while chosen and self._steps_to(chosen, self.total) > self._steps_left():
                chosen = chosen[:-1]
            if chosen:
                return self._rung(chosen, len(self.ladder) - 1)
        return None

    def _rung(self, trials: Sequence[Progress], place: int) -> Rung:
        return Rung(tuple(one.trial for one in trials), self.ladder[place])

    # ---- measuring ----

    def _measure(self, to: int) -> None:
        if to == self.ladder[0]:
            if len(self.ladder) == 1:
                self._settle("a trial has one step, so there is nothing to compare earlier")
            return
        early = self.ladder[self.ladder.index(to) - 1]
        both = [one for one in self.trials.values() if early in one.scores and to in one.scores]
        check = compare_ranks(early, to, [one.scores[early] for one in both], [one.scores[to] for one in both])
        if check is not None:
            self.checks.append(check)
        if not self.measuring:
            return
        if check is None:
            self._settle("fewer than four trials could be compared")
        elif check.stable:
            self._settle(check.describe())
        elif self.first + 2 >= len(self.ladder):
            self.first += 1
            self._settle(f"ranks are not stable before the last part of a trial: {check.describe()}")
        else:
            self.first += 1

    def _settle(self, why: str) -> None:
        self.measuring = False
        self.why = f"the first rung has {self.ladder[self.first]:,} of {self.total:,} steps: {why}"
        at = min((one.at for one in self.trials.values() if not one.failed and one.scores), default=0)
        self.plan = [place for place, step in enumerate(self.ladder) if step > at and place > self.first]
        trials_left = 0.0 if math.isinf(left := self._steps_left()) else left / self.total
        most = max(_MOST_WAVE, min(self.together, _MOST_TOGETHER))
        self.width = max(_WAVE, min(most, math.ceil(trials_left / _WAVES)))
        if self.most_trials < _UNLIMITED:  # the number of trials is the budget: in a few waves, each as wide as pays
            self.width = max(self.width, min(self.together, _MOST_TOGETHER, math.ceil(self.most_trials / _FEWEST_WAVES)))

    # ---- what is left ----

    def _steps_left(self) -> float:
        if self.spent <= 0:
            return math.inf
        return self.steps / self.spent * (1 - self.spent) + _SMALL * self.steps

    def _steps_to(self, trials: Sequence[Progress], to: int) -> int:
        return sum(to - one.at for one in trials)

    def _fits_in(self, trials: Sequence[Progress], place: int, share: float = 1.0) -> bool:
        """What is left has to take the first trial to its end."""
        after = 0 if self._finished() else self.total - self.ladder[place]
        return self._steps_to(trials, self.ladder[place]) <= min(share * self._steps_left(), self._steps_left() - after)

    def _wave_steps(self, width: int) -> int:
        """Of new trials and of what follows from them."""
        found = width * self.ladder[self.first]
        for place in range(self.first + 1, len(self.ladder)):
            found += math.ceil(width / 2 ** (place - self.first)) * (self.ladder[place] - self.ladder[place - 1])
        return found

    def _finished(self) -> list[Progress]:
        return [one for one in self.trials.values() if not one.failed and one.at == self.total]

    # ---- the model ----

    def _features(self, units: Sequence[Sequence[float]]) -> Array:
        return features_of(self.space, units)

    def _model(self, fit: bool = False) -> tuple[Model | None, float, list[tuple[float, ...]]]:
        """With the score to beat, standardised, and the points to look around."""
        rows = [(one.units, step, score) for one in self.trials.values() for step, score in one.scores.items() if step < one.at]
        rows += [(one.units, one.at, one.score) for one in self.trials.values() if one.scores]  # last: they say most
        rows += [(units, self.total, score) for units, score in self.earlier]
        if len(rows) < 4:
            return None, 0.0, []
        worst = min(score for _, _, score in rows)
        rows += [(one.units, max(one.at, self.ladder[0]), worst) for one in self.trials.values() if one.failed]
        points = self._features([units for units, _, _ in rows])
        steps = np.log2(np.array([step for _, step, _ in rows]) / self.total)
        model = Model(points, steps, np.array([score for _, _, score in rows]), self.constants, fit=fit)
        self.constants = model.constants
        alive = [one for one in self.trials.values() if not one.failed and one.scores]
        mean, _ = model.at_the_end(self._features([one.units for one in alive]))
        order = np.argsort(-mean, kind="stable")
        ends = [score for _, step, score in rows if step == self.total]
        incumbent = model.standardised(max(ends)) if ends else float(mean[order[0]])
        return model, incumbent, [alive[place].units for place in order[:5]]


def _fits(space: Space, point: Mapping[str, Any]) -> bool:
    """Whether a trial of an earlier study, of maybe another space, is a point of this one."""
    try:
        units = space.units_of(point)
    except UsageError:
        return False
    return set(space.point(units)) == set(point)
