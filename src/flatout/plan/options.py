"""What to try next: each candidate with the time it should save in the remaining steps and the cost of its trial."""

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
ENERGY_WINDOWS = 5  # of a second each: fewer could not show a difference at 95%
STEPS_LOOKED_AT = 8  # untimed steps of a trial
MARGIN = 0.01  # smaller gains are not worth a setting
_START_S = {"cpu": 6.0, "cuda": 20.0}  # start of the trial process: imports, building, reading the first batches
_UNKNOWN_STEP_S = 1e-3  # for a step without a prediction: short, so that a short run does not wait for trials
_UNKNOWN_FACTOR = 1.1

LIMIT_S = 300.0

Key = tuple[str, str]  # a knob's name and value


@dataclass(frozen=True)
class SearchTerms:
    """The conditions of a search."""

    steps_left: float
    limit_s: float = LIMIT_S
    isolated: bool = True  # trials run in their own process, so a trial may crash it
    analyze: bool = False  # also try settings that can't repay their cost; to be kept they still must
    prefer: str = "time"  # or "energy"
    free: bool = False  # trials are replayed and cost nothing, so no run is too short for them


SettingsStanding = Standing[Settings, TrialReport]


@dataclass(frozen=True)
class KnobOption:
    knob: Knob
    candidate: Candidate
    state: Settings  # with this setting
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
        """`start`: the settings without trials. Pinned `knobs` are never changed."""
        self._s, self._start, self._terms = s, start, terms
        self.knobs = {k.name: k for k in knobs if k.name not in s.pins and (terms.isolated or not k.risky)}
        self.reference = with_values(start, {knob.name: knob.off for knob in self.knobs.values()})
        self.compiling_s = 0.0  # measured: once compile is on, most other knobs need compiling again

    @property
    def energy_windows(self) -> int:
        """Enough to compare energy if it decides; otherwise it is only shown."""
        return ENERGY_WINDOWS if self._terms.prefer == "energy" else 1

    @property
    def measure_s(self) -> float:
        return MEASURE_S + (self.energy_windows - 1 if self._s.device.type != "cpu" else 0)

    def left(self, standing: SettingsStanding, done: Collection[Key]) -> list[KnobOption]:
        found = []
        for knob in self.knobs.values():
            for candidate in knob.candidates(self._s, standing.state):
                settings = with_values(standing.state, {knob.name: candidate.value})
                if (knob.name, str(candidate.value)) in done or conflicts(settings):
                    continue
                factor = candidate.factor or self._predicted_factor(standing.state, settings)
                again_s = self.compiling_s if standing.state.compile != "off" and candidate.compiles_anew else 0.0
                measuring_s = 0.0 if self._terms.free else self.measure_s + STEPS_LOOKED_AT * standing.step_s
                cost_s = candidate.cost_s + again_s + measuring_s
                stands = value_of(standing.state, knob.name)
                found.append(KnobOption(knob, candidate, settings, stands, factor, cost_s))
        return found

    def _predicted_factor(self, now: Settings, then: Settings) -> float:
        """Called only if the knob gives no factor: tracing a new variant of the step takes a second."""
        now_s, then_s = (self._s.predicted(settings).step_s for settings in (now, then))
        return now_s / then_s if now_s and then_s else _UNKNOWN_FACTOR

    def best_first(self, standing: SettingsStanding, done: Collection[Key]) -> list[KnobOption]:
        """Options worth a trial, those that repay soonest first. So the compiler is tried late, on the settings found before.
        Defaults come before other options that do not repay."""

        def rank(one: KnobOption) -> tuple[bool, float]:
            saves_s = self.saves_s(one, standing)
            pays = saves_s > one.cost_s
            return pays, saves_s / max(one.cost_s, 1e-9) if pays else saves_s - one.cost_s

        worth = [one for one in self.left(standing, done) if self._is_worth_it(one, standing)]
        return sorted(worth, key=rank, reverse=True)

    def saves_s(self, option: KnobOption, standing: SettingsStanding) -> float:
        return self._terms.steps_left * standing.step_s * (1 - 1 / option.predicted)

    def is_default(self, option: KnobOption) -> bool:
        """It would be used without a trial, so it is always tried."""
        return bool(value_of(self._start, option.knob.name) == option.candidate.value)

    def why_none(self) -> str | None:
        """Why trials would cost more than they could save, compared with the defaults; None: they may save more, were
        requested, or are replayed."""
        if self._terms.analyze or self._terms.free:
            return None
        if not self.knobs:
            return "all settings are pinned"
        start_s = self._s.predicted(self._start).step_s if self._s.plain.step_s else None
        step_s = start_s or self._s.plain.step_s or _UNKNOWN_STEP_S
        standing = Standing(self._start, TrialReport(self._start.to_dict(), steps_s=(step_s,)))
        cost_s = _START_S.get(self._s.device.type, _START_S["cuda"]) + MEASURE_S
        whole_s = self._terms.steps_left * standing.step_s
        if whole_s <= cost_s:
            return f"the whole run should take {show_seconds(whole_s)}; trials would cost at least {show_seconds(cost_s)}"
        best = sum(max(0.0, self.saves_s(option, standing)) for option in self.left(standing, ()))
        if best > cost_s:
            return None
        return f"trials could save {show_seconds(best)} of this run; they would cost at least {show_seconds(cost_s)}"

    def _is_worth_it(self, option: KnobOption, standing: SettingsStanding) -> bool:
        if self.is_default(option):
            return True
        looked_at = self._terms.analyze and option.predicted > 1 + MARGIN
        return looked_at or self.saves_s(option, standing) > option.cost_s
