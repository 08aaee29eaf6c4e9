"""The length of the first rung, as it was measured on the first wave, with the reason in words."""

from __future__ import annotations

from collections.abc import Iterable

from flatout.tuning.search.ladder import RankCheck, compare_ranks
from flatout.tuning.search.trials import TrialState


class FirstRung:
    """`place`: on the ladder of checkpoints."""

    def __init__(self, ladder: tuple[int, ...]) -> None:
        self.ladder, self.place, self.measured = ladder, 0, False
        self.checks: list[RankCheck] = []
        self.why = "not measured yet"

    @property
    def to(self) -> int:
        return self.ladder[self.place]

    def tell(self, trials: Iterable[TrialState], to: int) -> None:
        """Trials have been trained to that step."""
        if to == self.ladder[0]:
            if len(self.ladder) == 1:
                self.settle("a trial has one step, so there is nothing to compare earlier")
            return
        early = self.ladder[self.ladder.index(to) - 1]
        both = [one for one in trials if early in one.scores and to in one.scores]
        check = compare_ranks(early, to, [one.scores[early] for one in both], [one.scores[to] for one in both])
        self.checks += [] if check is None else [check]
        if self.measured:
            return
        if check is None:
            self.settle("fewer than four trials could be compared")
        elif check.stable:
            self.settle(check.describe())
        else:
            self.place += 1
            if self.place + 1 >= len(self.ladder):
                self.settle(f"ranks are not stable before the last part of a trial: {check.describe()}")

    def settle(self, why: str) -> None:
        self.measured = True
        self.why = f"the first rung has {self.to:,} of {self.ladder[-1]:,} steps: {why}"
