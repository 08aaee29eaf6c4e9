"""Searches for the best knob settings: the most promising first, each on top of those kept so far, until no trial can pay.

Measuring is separate from choosing: `tries` may be a process that runs trials, or a recording of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from flatout.base.units import show_seconds
from flatout.engine.settings import Settings, value_of, with_values
from flatout.measure.judging import Rejection
from flatout.measure.receipt import KEPT, UNTRIED, Entry, Receipt
from flatout.measure.search import Search
from flatout.measure.standing import median_s
from flatout.measure.taking_back import TakingBack
from flatout.measure.time_limit import TimeLimit
from flatout.measure.trial_record import TrialRecord, entry_of
from flatout.plan.knob_trials import KnobAttempt, KnobTrials
from flatout.plan.knobs.all import conflicts
from flatout.plan.knobs.knob import Knob, Priced
from flatout.plan.options import MARGIN, Key, KnobOption, Options, SearchTerms, SettingsStanding
from flatout.plan.price import cheap_s, prices
from flatout.plan.situation import Situation
from flatout.plan.trial_energy import with_energy
from flatout.plan.trials.reports import CTRL_C, TrialReport, Tries


class KnobSearch:
    def __init__(
        self,
        s: Situation,
        start: Settings,
        knobs: Sequence[Knob],
        tries: Tries,
        terms: SearchTerms,
        *,
        priced: Sequence[Priced] = (),
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`start`: the settings without trials; pinned ones are never changed. `priced`: knobs that are guarantees."""
        self._s, self._tries, self._terms, self._say, self._priced = s, tries, terms, say, priced
        self._options = Options(s, start, knobs, terms)
        self._knobs = self._options.knobs
        self._time_limit, self._record = TimeLimit(terms.limit_s, clock), TrialRecord()
        self._trials = KnobTrials(s, self._options, tries, terms, self._record, self._time_limit, say)
        self._done: set[Key] = set()
        self._by_default: dict[str, object] = {}  # untried knobs, with their default values

    @property
    def reference(self) -> Settings:
        return self._trials.reference

    def run(self) -> Receipt:
        needs = {knob.name: knob.meets for knob in self._knobs.values() if knob.lossy}
        back = TakingBack(self._record, self._trials, needs, MARGIN)
        search: Search[Settings, TrialReport, KnobOption] = Search(
            self,
            self._trials,
            self,
            self._record,
            self._time_limit,
            proof=self._trials,
            confirming=self._trials,
            taking_back=back,
        )
        receipt = search.run()
        if search.standing is not None and not search.is_interrupted:
            for entry in self._prices(search.standing):
                self._record.add(entry)
        return replace(
            receipt,
            reference=self.reference.to_dict(),
            settings=self._with_defaults(search.standing.state if search.standing else self.reference).to_dict(),
            entries=self._record.entries,
            isolated=self._terms.isolated,
            took_s=self._time_limit.spent_s,
            prefer=self._terms.prefer,
            **self._energy(search.standing),
        )

    def _energy(self, standing: SettingsStanding | None) -> dict[str, Any]:
        if standing is None:
            return {}
        step_j = median_s(standing.result.steps_j)
        return {"reference_step_j": self._trials.reference_j, "step_j": step_j, "meter": standing.result.meter}

    # ---- what to try ----

    def next_option(self, standing: SettingsStanding) -> KnobOption | None:
        worth = self._options.best_first(standing, self._done)
        left_s = self._time_limit.left_s
        option = next((one for one in worth if one.cost_s <= left_s), None)
        if option is not None:
            self._done.add(option.key)
        return option

    def why_no_more(self, standing: SettingsStanding) -> str:
        if worth := self._options.best_first(standing, self._done):
            spent, limit = show_seconds(self._time_limit.spent_s), show_seconds(self._terms.limit_s)
            cheapest = min(worth, key=lambda one: one.cost_s)
            costs = f"needs {show_seconds(cheapest.cost_s)}"
            return f"{spent} of {limit} planning time used; the next trial ({cheapest.named}) {costs}"
        if self._options.left(standing, self._done):
            return "the remaining trials would cost more than they save"
        return "nothing left to try"

    def untried(self, standing: SettingsStanding) -> Iterator[Entry]:
        for option in self._options.left(standing, ()):
            if self._record.of(option.name, option.value):
                continue
            why = self._why_untried(option, standing)
            if self._options.is_default(option):
                why = "default: no time left to try it"
                self._by_default[option.name] = option.value
            stands = value_of(standing.state, option.name)
            yield Entry(option.name, option.value, stands, UNTRIED, why, option.predicted)

    def _why_untried(self, option: KnobOption, standing: SettingsStanding) -> str:
        saves_s, costs = self._options.saves_s(option, standing), show_seconds(option.cost_s)
        if saves_s <= 0:
            return "predicted to be no faster here"
        if self._terms.analyze and option.predicted > 1 + MARGIN:
            return f"no time left: a trial costs {costs}"
        return f"a trial would cost {costs} and save about {show_seconds(saves_s)}"

    def _with_defaults(self, settings: Settings) -> Settings:
        """After an early end, untried settings keep their defaults, unless these conflict with what was found."""
        filled = with_values(settings, self._by_default)
        return settings if conflicts(filled) else filled

    # ---- reporting ----

    def note(self, option: KnobOption, attempt: KnobAttempt) -> None:
        change = (option.name, option.value, option.instead_of)
        entry = entry_of(*change, attempt.result, attempt.judgement, option.predicted)
        entry = with_energy(entry, attempt.result, attempt.standing.result)
        self._record.add(entry, attempt.judgement.rejection)
        self._say(f"  {entry.verdict}: {entry.why}")
        if attempt.judgement.kept:  # knobs that it affects may gain something now
            self._done -= {key for key in self._done if option.name in self._knobs[key[0]].meets and self._was_in_vain(key)}

    def _was_in_vain(self, key: Key) -> bool:
        """Tried once without gain. After a second try it is final."""
        return [one.rejection for one in self._record.of(*key)] == [Rejection.NO_GAIN]

    def interrupted(self) -> None:
        """Reported at once, so that a user who pressed Ctrl-C knows why training starts."""
        goes_on = "showing the plan with" if self._terms.analyze else "training starts now with"
        self._say(f"{CTRL_C}trials stopped; {goes_on} the settings proven so far. Press Ctrl-C again to stop.")

    def _prices(self, proven: SettingsStanding) -> list[Entry]:
        """Prices of guarantees, if requested or cheap to measure."""
        left_s = self._time_limit.left_s
        if not self._terms.analyze:
            left_s = min(left_s, cheap_s(self._terms.limit_s, self._terms.steps_left * proven.step_s))
        first_s = max((entry.first_s or 0.0 for entry in self._record.entries if entry.verdict == KEPT), default=0.0)
        arms = (proven.state, self.reference, proven.result.steps_s)
        return prices(self._s, self._priced, self._tries, *arms, first_s=first_s, most_s=left_s, interrupted=self.interrupted)
