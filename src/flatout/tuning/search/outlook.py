"""What the results so far let expect: of new points, and of trials that are not at their end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.tuning.search.draws import Draws, expected_improvement
from flatout.tuning.search.features import features_of
from flatout.tuning.search.model import MOST, KernelConstants, Model
from flatout.tuning.search.standing import StudyStanding
from flatout.tuning.search.trials import TrialState

Units = tuple[float, ...]
_FEWEST = 4  # results for a model
_AROUND = 5  # trials near which new points are drawn


class Outlook:
    """`earlier`: points of an earlier study, with their scores at full length; higher is better."""

    def __init__(self, standing: StudyStanding, shortest: int, earlier: Sequence[tuple[Units, float]]) -> None:
        self.standing, self.shortest, self.earlier = standing, shortest, earlier
        self.constants: KernelConstants | None = None

    def new_points(self, count: int, draws: Draws) -> list[Units]:
        model, target = self._model(fit=True)
        if model is None or count <= 0:
            return []
        good = self.standing.good()
        units = [one.units for one in good] or [units for units, _ in self.earlier]
        mean, _ = model.at_the_end(features_of(self.standing.space, units))
        best = [units[place] for place in np.argsort(-mean, kind="stable")[:_AROUND]]
        return draws.promising(count, model, best, target)

    def best_first(self, trials: Sequence[TrialState]) -> list[TrialState]:
        """By expected improvement; by score if too little is known for a model."""
        if not trials:
            return []
        model, target = self._model()
        if model is None:
            order = np.argsort([-one.score for one in trials], kind="stable")
        else:
            mean, deviation = model.at_the_end(features_of(self.standing.space, [one.units for one in trials]))
            order = np.argsort(-expected_improvement(mean, deviation, target), kind="stable")
        return [trials[place] for place in order]

    def _model(self, fit: bool = False) -> tuple[Model | None, float]:
        """With the score to beat, standardised."""
        good, total = self.standing.good(), self.standing.total
        latest = [(one.units, one.at, one.score) for one in good] + [(units, total, score) for units, score in self.earlier]
        failed = [one for one in self.standing.trials.values() if one.failed]
        rows = latest
        if failed or len(latest) < MOST:  # the model takes the last ones: they say most
            rows = [(one.units, step, score) for one in good for step, score in one.scores.items() if step < one.at] + latest
        if len(rows) < _FEWEST:
            return None, 0.0
        if failed:
            worst = min(score for _, _, score in rows)
            rows += [(one.units, max(one.at, self.shortest), worst) for one in failed]
        space, used = self.standing.space, rows[-MOST:]
        points = features_of(space, [units for units, _, _ in used])
        steps = np.log2(np.array([step for _, step, _ in used]) / total)
        model = Model(points, steps, np.array([score for _, _, score in used]), self.constants, fit=fit)
        self.constants = model.constants
        ends = [score for _, step, score in latest if step == total]
        if ends:
            return model, model.standardised(max(ends))
        mean, _ = model.at_the_end(features_of(space, [one.units for one in good]))
        return model, float(mean.max())
