"""What to try next: each candidate with what it should save over the steps that are left and what its trial should cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.base.units import show_seconds, show_value
from flatout.engine.settings import Settings, value_of, with_values
from flatout.measure.standing import Standing
from flatout.plan.knobs.all import conflicts
from flatout.plan.knobs.knob import Candidate, Knob
from flatout.plan.situation import Situation
from flatout.plan.trials.reports import TrialReport

MEASURE_S = 2.0
STEPS_LOOKED_AT = 8  # that a trial takes beside those that are timed
MARGIN = 0.01  # a gain below it is not worth a setting
_START_S = {"cpu": 6.0, "cuda": 20.0}  # a process for trials: importing, building, reading the first batches
_UNKNOWN_STEP_S = 1e-3  # of a step that can't be predicted: rather too short, so that no short run waits for trials
_UNKNOWN_FACTOR = 1.1

LIMIT_S = 300.0

Key = tuple[str, str]  # a knob's name and a value of it


@dataclass(frozen=True)
class SearchTerms:
    """On which a search is made."""

    steps_left: float
    limit_s: float = LIMIT_S
    isolated: bool = True  # trials have a process of their own: one that may take it with it can be made
    analyze: bool = False  # also try what can't pay in the steps that are left; what is kept must pay all the same
    free: bool = False  # trials are replayed and measure nothing, so that no run is too short for them


SettingsStanding = Standing[Settings, TrialReport]


@dataclass(frozen=True)
class KnobOption:
    knob: Knob
    candidate: Candidate
    state: Settings  # with it
    instead_of: Any
    predicted: float
    cost_s: float

    @property
    def name(self) -> str:
        return self.knob.name

    @property
    def value(self) -> Any:
        return self.candidate.value

    @property
    def key(self) -> Key:
        return self.knob.name, str(self.candidate.value)

    @property
    def named(self) -> str:
        return f"{self.knob.name.replace('_', ' ')} {show_value(self.candidate.value)}"


class Options:
    def __init__(self, s: Situation, start: Settings, knobs: Sequence[Knob], terms: SearchTerms) -> None:
        """`start`: settings as they would be without a trial. Of the `knobs`, pinned ones are never turned."""
        self._s, self._start, self._terms = s, start, terms
        self.knobs = {k.name: k for k in knobs if k.name not in s.pins and (terms.isolated or not k.risky)}
        self.reference = with_values(start, {knob.name: knob.off for knob in self.knobs.values()})
        self.compiling_s = 0.0  # as it was seen here: most other knobs have to be compiled anew once that is on

    def left(self, standing: SettingsStanding, done: Collection[Key]) -> list[KnobOption]:
        found = []
        for knob in self.knobs.values():
            for candidate in knob.candidates(self._s, standing.state):
                settings = with_values(standing.state, {knob.name: candidate.value})
                if (knob.name, str(candidate.value)) in done or conflicts(settings):
                    continue
                factor = candidate.factor or self._predicted_factor(standing.state, settings)
                again_s = self.compiling_s if standing.state.compile != "off" and candidate.compiles_anew else 0.0
                measuring_s = 0.0 if self._terms.free else MEASURE_S + STEPS_LOOKED_AT * standing.step_s
                cost_s = candidate.cost_s + again_s + measuring_s
                stands = value_of(standing.state, knob.name)
                found.append(KnobOption(knob, candidate, settings, stands, factor, cost_s))
        return found

    def _predicted_factor(self, now: Settings, then: Settings) -> float:
        """Asked only where a knob knows no better: a form of the step that nobody looked at yet takes a second to trace."""
        now_s, then_s = (self._s.predicted(settings).step_s for settings in (now, then))
        return now_s / then_s if now_s and then_s else _UNKNOWN_FACTOR

    def best_first(self, standing: SettingsStanding, done: Collection[Key]) -> list[KnobOption]:
        """What is worth a trial. What pays back soonest comes first: so the compiler comes late, and compiles what was found
        before it. What would be taken untried comes before the rest that does not pay.
        """

        def rank(one: KnobOption) -> tuple[bool, float]:
            saves_s = self.saves_s(one, standing)
            pays = saves_s > one.cost_s
            return pays, saves_s / max(one.cost_s, 1e-9) if pays else saves_s - one.cost_s

        worth = [one for one in self.left(standing, done) if self._is_worth_it(one, standing)]
        return sorted(worth, key=rank, reverse=True)

    def saves_s(self, option: KnobOption, standing: SettingsStanding) -> float:
        return self._terms.steps_left * standing.step_s * (1 - 1 / option.predicted)

    def is_default(self, option: KnobOption) -> bool:
        """Without a trial it would be taken: so it is always tried."""
        return bool(value_of(self._start, option.knob.name) == option.candidate.value)

    def why_none(self) -> str | None:
        """Why trials could not save what their process costs, over what would be taken without any; None: they could, or need
        not, since somebody asked for them or they are replayed."""
        if self._terms.analyze or self._terms.free:
            return None
        if not self.knobs:
            return "every knob is pinned"
        start_s = self._s.predicted(self._start).step_s if self._s.plain.step_s else None
        step_s = start_s or self._s.plain.step_s or _UNKNOWN_STEP_S
        standing = Standing(self._start, TrialReport(self._start.to_dict(), steps_s=(step_s,)))
        cost_s = _START_S.get(self._s.device.type, _START_S["cuda"]) + MEASURE_S
        whole_s = self._terms.steps_left * standing.step_s
        if whole_s <= cost_s:
            return f"the whole run should take {show_seconds(whole_s)}, and trials would cost {show_seconds(cost_s)} or more"
        best = sum(max(0.0, self.saves_s(option, standing)) for option in self.left(standing, ()))
        if best > cost_s:
            return None
        return f"trials could save {show_seconds(best)} of this run and would cost {show_seconds(cost_s)} or more"

    def _is_worth_it(self, option: KnobOption, standing: SettingsStanding) -> bool:
        if self.is_default(option):
            return True
        looked_at = self._terms.analyze and option.predicted > 1 + MARGIN
        return looked_at or self.saves_s(option, standing) > option.cost_s
