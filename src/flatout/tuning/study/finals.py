"""The winner, judged honestly.

The best few, and the recipe as it was, are trained again on fresh seeds; the best of them is the winner. Then the winner and
the recipe are trained on other fresh seeds and scored on rows that chose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flatout.base.errors import TrainingError
from flatout.base.events import EventLog
from flatout.data.order.keyed import keyed
from flatout.tuning.study.intervals import SeedInterval, of_the_mean, of_the_next
from flatout.tuning.training.shared import CHOOSE, JUDGE

RECIPE = -1  # the number of the recipe as it was, among trials
_SIZES = ((3, 3, 8), (3, 2, 6), (2, 2, 5), (1, 2, 4), (1, 1, 3))  # finalists, seeds that choose, seeds that judge
_MOST_SHARE = 0.3  # of the budget

Finalist = tuple[int, Mapping[str, Any], Sequence[str]]  # the number of a trial, its point, its overrides
Train = Callable[[Sequence[tuple[int, Sequence[str]]], str], dict[int, float | str]]


@dataclass(frozen=True)
class Size:
    finalists: int
    choosing: int
    judging: int

    @property
    def trainings(self) -> int:
        return (self.finalists + 1) * self.choosing + 2 * self.judging


def size_for(training_share: float) -> Size:
    """`training_share`: of the study's budget, what one whole training takes; 0 if there is no limit."""
    for given in _SIZES:
        size = Size(*given)
        if size.trainings * training_share <= _MOST_SHARE:
            return size
    return Size(*_SIZES[-1])


@dataclass(frozen=True)
class FinalsVerdict:
    """`again`: where the winner's score lies when it is trained once more; `gain`: the mean difference from the recipe. If the
    recipe always fails, its interval and the gain are of no values."""

    winner: int
    again: SeedInterval
    recipe: SeedInterval
    gain: SeedInterval
    scores: tuple[float, ...]
    recipe_scores: tuple[float, ...]
    chosen_by: Mapping[int, float]  # mean score of each finalist on fresh seeds

    def better(self, higher_is_better: bool) -> bool | None:
        """Than the recipe as it was. None: these seeds can't tell."""
        if self.winner != RECIPE and not self.recipe_scores:
            return True
        if not self.gain.excludes_zero:
            return None
        return (self.gain.low > 0) is higher_is_better

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Finals:
    def __init__(self, train: Train, log: EventLog, seed: int, known: Sequence[Mapping[str, Any]]) -> None:
        """`train` gives the scores of whole trainings. `known`: the study's events, of which answers are taken again."""
        self._train, self._log, self._seed = train, log, seed
        self._known = {event["key"]: event["scores"] for event in known if event["kind"] == "finals"}

    def judge(self, finalists: Sequence[Finalist], size: Size, higher_is_better: bool) -> FinalsVerdict:
        recipe: Finalist = (RECIPE, {}, ())
        entered = [*list(finalists)[: size.finalists], recipe]
        found = self._scores(entered, range(size.choosing), CHOOSE)
        means = {number: math.fsum(scores.values()) / len(scores) for number, scores in found.items() if scores}
        best = (max if higher_is_better else min)(means, key=lambda number: means[number], default=entered[0][0])
        winner = next(one for one in entered if one[0] == best)
        seeds = range(size.choosing, size.choosing + size.judging)
        compared = best != RECIPE and bool(found[RECIPE])  # a recipe that always fails has nothing to compare with
        of_both = self._scores([winner, *([recipe] if compared else [])], seeds, JUDGE)
        ours, theirs = of_both[winner[0]], of_both.get(RECIPE, {})
        if len(ours) < 2:
            raise TrainingError(
                "the best trial failed when it was trained again with other seeds, so there is no winner: a lower learning "
                "rate, or a space without its extremes, gives trainings that do not depend on luck"
            )
        gain = of_the_mean([ours[seed] - theirs[seed] for seed in ours if seed in theirs])
        again, before = list(ours.values()), list(theirs.values())
        chosen = {number: list(scores.values()) for number, scores in found.items()}
        akin = [scores for number, scores in chosen.items() if number != RECIPE or winner[0] == RECIPE]
        found_again, found_before = of_the_next(again, akin), of_the_next(before, [chosen[RECIPE]])
        return FinalsVerdict(winner[0], found_again, found_before, gain, tuple(again), tuple(before), means)

    def _scores(self, finalists: Sequence[Finalist], seeds: Sequence[int], which: str) -> dict[int, dict[int, float]]:
        """Of each finalist, a score for each seed with which it did not fail."""
        key = f"{which}: {[one[0] for one in finalists]}, seeds {list(seeds)}"
        if key not in self._known:
            asked = {
                _number(one[0], seed): (one[0], seed, [*one[2], f"seed={keyed(self._seed, 'finals', seed) % (1 << 31)}"])
                for one in finalists
                for seed in seeds
            }
            found = self._train([(number, overrides) for number, (_, _, overrides) in asked.items()], which)
            scores = [[asked[number][0], asked[number][1], score] for number, score in found.items()]
            self._log.emit("finals", key=key, which=which, scores=scores)
            self._known[key] = scores
        table = {(number, seed): score for number, seed, score in self._known[key] if not isinstance(score, str)}
        return {one[0]: {seed: table[one[0], seed] for seed in seeds if (one[0], seed) in table} for one in finalists}


def _number(trial: int, seed: int) -> int:
    """Of a training in the finals: different from all trials."""
    return 1_000_000 + (trial + 1) * 1_000 + seed
