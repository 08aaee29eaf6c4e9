"""The fastest mesh: the first that runs, unless another one is faster by more than the noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flatout.base.units import show_seconds
from flatout.measure.judging import judge, times_of
from flatout.measure.receipt import Entry
from flatout.measure.search import Attempt, NoBaseline, Search
from flatout.measure.standing import Standing, median_s
from flatout.measure.time_limit import TimeLimit
from flatout.measure.trial_record import TrialRecord, entry_of
from flatout.plan.layouts.fitting import LayoutChoice


@dataclass(frozen=True)
class LayoutTimes:
    """A trial of a mesh. Results are not compared, because every mesh computes the same steps."""

    steps_s: tuple[float, ...] = ()
    failure: str = ""
    why: str = ""
    against_s: tuple[float, ...] = ()
    first_s: float | None = None
    peak_bytes: int | None = None
    check: Mapping[str, Any] | None = None
    took_s: float = 0.0


@dataclass(frozen=True)
class _LayoutOption:
    state: LayoutChoice


_Standing = Standing[LayoutChoice, LayoutTimes]
_Attempt = Attempt[LayoutChoice, LayoutTimes]


class LayoutSearch:
    def __init__(
        self, options: Sequence[LayoutChoice], trial: Callable[[LayoutChoice], LayoutTimes], say: Callable[[str], None]
    ) -> None:
        self._options, self._trial, self._say = options, trial, say
        self._waiting = iter(options)
        self._found: dict[str, LayoutTimes] = {}
        self._record = TrialRecord()

    def chosen(self) -> LayoutChoice:
        """The fastest mesh and why. The first one if nothing could be measured."""
        search: Search[LayoutChoice, LayoutTimes, _LayoutOption] = Search(
            self, self, self, self._record, TimeLimit(float("inf"))
        )
        search.run()
        failed = "".join(f"; {mesh} failed: {found.failure}" for mesh, found in self._found.items() if found.failure)
        if search.standing is None:
            return replace(self._options[0], why=f"{self._options[0].why}{failed}")
        best = search.standing.state
        ran = [one for one in self._options if not self._found[one.mesh].failure]
        others = "".join(f", {one.mesh} {self._step(one)}" for one in ran if one.mesh != best.mesh)
        return replace(best, why=f"measured: {self._step(best)} a step{others}{failed}", source="measured")

    def _step(self, option: LayoutChoice) -> str:
        step_s = median_s(self._found[option.mesh].steps_s)
        return "" if step_s is None else show_seconds(step_s)

    def _tried(self, option: LayoutChoice) -> LayoutTimes:
        self._say(f"trying mesh {option.mesh}")
        found = self._found[option.mesh] = self._trial(option)
        self._say(f"  rejected: {found.failure}" if found.failure else f"  {self._step(option)} a step")
        return found

    # ---- how to run a trial ----

    def baseline(self) -> _Standing | NoBaseline:
        for option in self._waiting:
            if not (found := self._tried(option)).failure:
                return Standing(option, found)
        return NoBaseline("none of them ran")

    def attempt(self, option: _LayoutOption, standing: _Standing) -> _Attempt:
        found = self._tried(option.state)
        judgement = judge(found, times_of(found, standing.result), margin=0.0, is_checked=False)
        return Attempt(judgement, found, standing)

    # ---- what to try, and what is reported ----

    def next_option(self, standing: _Standing) -> _LayoutOption | None:
        option = next(self._waiting, None)
        return None if option is None else _LayoutOption(option)

    def why_no_more(self, standing: _Standing) -> str:
        return "all were tried"

    def untried(self, standing: _Standing) -> Iterator[Entry]:
        return iter(())

    def note(self, option: _LayoutOption, attempt: _Attempt) -> None:
        stood = attempt.standing.state.mesh
        self._record.add(entry_of("mesh", option.state.mesh, stood, attempt.result, attempt.judgement))

    def interrupted(self) -> None:
        """Ctrl-C ends the run, on all processes together."""
        raise KeyboardInterrupt
