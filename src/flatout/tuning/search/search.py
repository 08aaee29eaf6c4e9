"""What to train next: waves of new trials, compared at a few steps of the full schedule; the best of them go on to the next.

The first wave covers the space evenly and measures how early ranks are stable. From then on a model of the results chooses new
trials, and which of the old ones go on. The same seed and the same answers give the same decisions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flatout.base.errors import UsageError
from flatout.machine.threads import cpu_threads
from flatout.tuning.search.draws import Draws
from flatout.tuning.search.first_rung import FirstRung
from flatout.tuning.search.history import SearchHistory
from flatout.tuning.search.ladder import checkpoints
from flatout.tuning.search.outlook import Outlook
from flatout.tuning.search.standing import StudyStanding
from flatout.tuning.search.trials import Rung, RungAnswer, Trial, TrialState
from flatout.tuning.space.space import Space

_FIRST_WAVE, _WAVE, _MOST_WAVE = 16, 8, 64  # trials; a later wave is wider if the budget allows for many
_WAVES = 2.5  # whole trials that are left of the budget, for each trial of a wave
_MOST_TOGETHER, _FEWEST_WAVES = 256, 5
_LAST = 3  # trials that go to the end together with what is left


class TrialSearch:
    """`total`: steps of a whole trial. `start`: points that are tried first. `earlier`: points of an earlier study with their
    scores at full length; those that are no points of this space are left out."""

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
        self.sign = 1.0 if higher_is_better else -1.0
        self.standing = StudyStanding(space, total, self.sign)
        self.ladder = checkpoints(total)
        self.first = FirstRung(self.ladder)
        self.draws = Draws(space, seed)
        known = [(space.units_of(point), self.sign * score) for point, score in earlier if _fits(space, point, score)]
        self.outlook = Outlook(self.standing, self.ladder[0], known)
        self.given = [space.units_of(point) for point in start if self.draws.given(point)]
        self.most_trials = math.inf if most_trials is None else most_trials
        self.width = _FIRST_WAVE
        self.together = 1  # trials that cost about as much as one: the caller's, who knows how they are trained
        self.nearly_free = 0  # trials that a rung may have at nearly the time of the fewest: also the caller's
        self.plan: list[int] | None = None  # the rungs that are left of this wave, as places on the ladder
        self.asked: Rung | None = None
        self.sampler_s, self.waves, self.done = 0.0, 0, False

    @property
    def trials(self) -> Mapping[int, TrialState]:
        return self.standing.trials

    def limit(self, most_trials: int | None, spent: float | None, once: float = 0.0) -> None:
        """From here on other limits hold. `spent`, `once`: shares of the budget so far, which are smaller of a larger one."""
        self.most_trials = math.inf if most_trials is None else most_trials
        if spent is not None:
            self.standing.spent, self.standing.once = spent, once
        self.done = False

    def next(self) -> Rung | None:
        """None: the search is finished. The same rung until it is answered."""
        if self.asked is None and not self.done:
            began_s = time.perf_counter()
            with cpu_threads(1):  # several would wait for each other, and the same number gives the same decisions
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
        self.standing.tell(self.asked, answer)
        self.first.tell(self.trials.values(), self.asked.to)
        self.asked = None

    def best(self, count: int) -> list[tuple[Trial, float]]:
        """The best trials at full length with their scores."""
        finished = sorted(self.standing.finished(), key=lambda one: (-one.score, one.trial.number))
        return [(one.trial, self.sign * one.score) for one in finished[:count]]

    @property
    def history(self) -> SearchHistory:
        failed = sum(one.failed for one in self.trials.values())
        finished = len(self.standing.finished())
        alive = sum(not self.trials[one.number].failed for one in self.asked.trials) if self.asked else 0
        dropped = len(self.trials) - failed - finished - alive
        first = self.first.to if self.first.measured else 0
        return SearchHistory(
            checks=tuple(self.first.checks), first_rung=first, why=self.first.why, trials=len(self.trials), alive=alive,
            dropped=dropped, failed=failed, finished=finished, sampler_s=self.sampler_s, waves=self.waves,
        )  # fmt: skip

    def _next(self) -> Rung | None:
        if not self.trials:
            return self._new_trials(max(self.width, self._most_at_once))
        if self.standing.spent >= 1:
            return None
        if not self.first.measured:
            going, to = self.standing.good(), self.ladder[self.first.place + 1]
            if going and self.standing.affords(going, to, share=0.5):
                return _rung(going, to)
            self.first.settle("the budget does not allow for comparing ranks at a later step")
        if self.plan is None:
            self._plan_first_wave()
        while self.plan:
            place = self.plan.pop(0)
            count = math.ceil(self.width / 2 ** (place - self.first.place))
            chosen = self._promoted(place, max(count, self.nearly_free))
            if chosen and self.standing.affords(chosen[:count], self.ladder[place]):
                return _rung(chosen, self.ladder[place])
        left = self.standing.steps_left()
        if len(self.ladder) == 1:  # there is nothing to promote: what is left is for new trials alone
            return self._new_trials(int(min(self.width, left)))
        if self._wave_steps() <= left and (new := self._new_trials(self.width)):
            return new
        if math.isinf(left) and any(one.at == self.standing.total for one in self.standing.good()):
            return None  # only the number of trials is limited: more training of those that were left behind is not asked for
        return self._last()

    def _plan_first_wave(self) -> None:
        """The rungs that follow it; and how wide later waves are."""
        at = min((one.at for one in self.standing.good()), default=0)
        self.plan = [place for place, step in enumerate(self.ladder) if step > at and place > self.first.place]
        left = self.standing.steps_left() / self.standing.total
        self.width = max(_WAVE, math.ceil(min(max(_MOST_WAVE, self._most_at_once), left / _WAVES)))
        if math.isfinite(self.most_trials):
            self.width = min(self.width, self._wave_of_few)

    @property
    def _most_at_once(self) -> int:
        """As many as cost about as much as one; of few trials not all, because later waves learn from earlier ones."""
        wide = min(self.together, _MOST_TOGETHER)
        return min(wide, self._wave_of_few) if math.isfinite(self.most_trials) else wide

    @property
    def _wave_of_few(self) -> int:
        return max(_WAVE, math.ceil(self.most_trials / _FEWEST_WAVES))

    def _new_trials(self, count: int) -> Rung | None:
        count = int(min(count, self.most_trials - len(self.trials)))
        if count <= 0:
            return None
        units, self.given = self.given[:count], self.given[count:]
        units += self.outlook.new_points(count - len(units), self.draws)
        units += self.draws.even(count - len(units)) if count > len(units) else []
        if not units:
            return None
        self.waves += 1
        if self.first.measured:
            self.plan = list(range(self.first.place + 1, len(self.ladder)))
        return _rung([self.standing.add(row) for row in units], self.first.to)

    def _promoted(self, place: int, count: int) -> list[TrialState]:
        """Of all trials that stand below that rung, those from which the model expects most."""
        return self.outlook.best_first([one for one in self.standing.good() if one.at < self.ladder[place]])[:count]

    def _last(self) -> Rung | None:
        """With what is left, the most promising trials go to the end."""
        candidates = self._promoted(len(self.ladder) - 1, max(_LAST, self.nearly_free))
        chosen = candidates[:_LAST]
        while chosen and not self.standing.affords(chosen, self.ladder[-1]):
            chosen = chosen[:-1]
        return _rung(candidates if len(chosen) == _LAST else chosen, self.ladder[-1]) if chosen else None

    def _wave_steps(self) -> int:
        """Of new trials and of what follows from them."""
        found = self.width * self.first.to
        for place in range(self.first.place + 1, len(self.ladder)):
            found += math.ceil(self.width / 2 ** (place - self.first.place)) * (self.ladder[place] - self.ladder[place - 1])
        return found


def _rung(trials: Sequence[TrialState], to: int) -> Rung:
    return Rung(tuple(one.trial for one in trials), to)


def _fits(space: Space, point: Mapping[str, Any], score: float) -> bool:
    """Whether a trial of an earlier study, of maybe another space, is a point of this one."""
    try:
        units = space.units_of(point)
    except UsageError:
        return False
    return math.isfinite(score) and set(space.point(units)) == set(point)
