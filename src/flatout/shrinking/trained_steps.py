"""Which smaller models are trained and tried, in which order: less is cut first, more only while that is accurate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flatout.base.answering_child import NoAnswer
from flatout.base.units import show_seconds
from flatout.measure.receipt import UNTRIED, Entry
from flatout.measure.time_limit import TimeLimit
from flatout.shrinking.changes.all import TRAINED
from flatout.shrinking.step import ShrinkStep

_PATIENCE_S = 600.0

Ask = Callable[[Mapping[str, Any], float], dict[str, Any]]


class TrainedSteps:
    """`limit_s`: that all trainings may take together; 0: none is tried."""

    def __init__(self, ask: Ask, limit_s: float, time_limit: TimeLimit, say: Callable[[str], None]) -> None:
        self._ask, self._limit_s, self._time_limit, self._say = ask, limit_s, time_limit, say
        self._left: list[ShrinkStep] | None = None  # not asked for yet
        self._takes_s: dict[ShrinkStep, float] = {}
        self._lost: dict[str, ShrinkStep] = {}  # by change: the step that was not accurate enough
        self.untried: list[Entry] = []

    def next_step(self) -> ShrinkStep | None:
        if self._limit_s <= 0:
            return None
        if self._left is None:
            self._left = self._applying()
        while self._left:
            step = self._left.pop(0)
            why_not = self._why_not(step)
            if why_not is None:
                self._limit_s -= self._takes_s[step]
                return step
            self._leave(step, why_not)
        return None

    def takes_s(self, step: ShrinkStep) -> float:
        return self._takes_s.get(step, 0.0)

    def leave_all(self, why: str) -> None:
        """None is trained."""
        if self._left is None and self._limit_s > 0:
            self.untried += [Entry(name, "", None, UNTRIED, why) for name in TRAINED]
        self._left = []

    def not_accurate(self, step: ShrinkStep) -> None:
        """No candidate of this step is accurate enough: one that cuts more is not tried."""
        self._lost[step.change] = step

    def rest(self, why: str) -> Iterator[Entry]:
        yield from self.untried
        if self._left is None and self._limit_s > 0:  # it was never asked whether they apply
            yield from (Entry(name, "", None, UNTRIED, why) for name in TRAINED)
        yield from (_untried(step, why) for step in self._left or ())

    def _applying(self) -> list[ShrinkStep]:
        self._say("looking at what the model can learn with fewer weights")
        try:
            changes = self._ask({"ask": "lessons"}, _PATIENCE_S)["changes"]
        except NoAnswer as none:
            self.untried.append(Entry("prune", "", None, UNTRIED, f"the run behind the package can't be used: {none}"))
            return []
        found = []
        for name, values in changes.items():
            for value, about in values.items():
                step = ShrinkStep(name, value)
                if about["why_not"] is None:
                    self._takes_s[step] = about["takes_s"]
                    found.append(step)
                else:
                    self._leave(step, about["why_not"])
        return found

    def _why_not(self, step: ShrinkStep) -> str | None:
        if step.change in self._lost:
            return f"{self._lost[step.change].named} is not proven as accurate, and this has fewer weights"
        takes_s = self._takes_s[step]
        for left_s, what in ((self._limit_s, "--training"), (self._time_limit.left_s, "--within")):
            if takes_s > left_s:
                left = show_seconds(max(left_s, 0.0))
                return f"its training takes about {show_seconds(takes_s)}, and {left} are left of {what}"
        return None

    def _leave(self, step: ShrinkStep, why: str) -> None:
        self.untried.append(_untried(step, why))


def _untried(step: ShrinkStep, why: str) -> Entry:
    return Entry(step.change, step.value, None, UNTRIED, why)
