"""How far each trial of a study came, and what is left of the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flatout.tuning.search.trials import Rung, RungAnswer, Trial, TrialState
from flatout.tuning.space.space import Space

_SMALL = 1e-9  # shares of a budget are rounded


class StudyStanding:
    def __init__(self, space: Space, total: int, sign: float) -> None:
        self.space, self.total, self.sign = space, total, sign
        self.trials: dict[int, TrialState] = {}
        self.spent, self.once, self.steps = 0.0, 0.0, 0

    def add(self, units: tuple[float, ...]) -> TrialState:
        trial = TrialState(Trial(len(self.trials), self.space.point(units)), units)
        self.trials[trial.trial.number] = trial
        return trial

    def tell(self, rung: Rung, answer: RungAnswer) -> None:
        for one in rung.trials:
            trial, score = self.trials[one.number], answer.scores[one.number]
            self.steps += rung.to - trial.at
            if score is None or not math.isfinite(score):
                trial.failed = True
            else:
                trial.scores[rung.to] = self.sign * float(score)
        self.spent, self.once = max(self.spent, answer.spent), answer.once

    def good(self) -> list[TrialState]:
        return [one for one in self.trials.values() if not one.failed and one.scores]

    def finished(self) -> list[TrialState]:
        return [one for one in self.good() if one.at == self.total]

    def steps_left(self) -> float:
        """At the price of the steps so far."""
        if self.spent <= self.once:
            return math.inf
        return self.steps / (self.spent - self.once) * (1 - self.spent) + _SMALL * self.steps

    def affords(self, trials: Sequence[TrialState], to: int, share: float = 1.0) -> bool:
        """Within that share of what is left; and what is left then has to take the first trial to its end."""
        after = 0 if self.finished() else self.total - to
        return steps_to(trials, to) <= min(share * self.steps_left(), self.steps_left() - after)


def steps_to(trials: Sequence[TrialState], to: int) -> int:
    return sum(to - one.at for one in trials)
