"""Which knobs to turn: the most promising first, each tried from where the search stands, until the rest can't pay.

Measuring and choosing are apart: `tries` may be a process that runs arms, or a recording of one that did.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from flatout.base.units import show_seconds, show_value
from flatout.engine.settings import Settings, conflicts, value_of, with_values
from flatout.measure.receipt import KEPT, REJECTED, UNTRIED, Entry, Receipt
from flatout.measure.stats import Comparison, compare, compare_paired
from flatout.plan.knobs.knob import Candidate, Knob
from flatout.plan.predict import predict
from flatout.plan.side_by_side import SideBySide
from flatout.plan.situation import Situation
from flatout.plan.trials.reports import INTERRUPTED, NOT_RECORDED, Ask, Report, Tries, fitting_rows

LIMIT_S = 300.0
_MARGIN = 0.01  # a gain below it is not worth a setting
_HARMLESS = 0.02  # what is good for something else may seem to cost, within the noise
_START_S = {"cpu": 6.0, "cuda": 20.0}  # a process for trials: importing, building, reading the first batches
_MEASURE_S = 2.0
_STEPS_LOOKED_AT = 8  # that a trial takes beside those that are timed
_SLOWER = 3.0
_PATIENCE_S, _PATIENCE = 20.0, 4.0  # with a trial: some time, and so many times what it should take
_UNKNOWN_STEP_S = 1e-3  # of a step that can't be predicted: rather too short, so that no short run waits for trials


@dataclass
class _Standing:
    """Where the search is: settings that were measured and proven on one step."""

    settings: Settings
    steps_s: tuple[float, ...]

    @property
    def step_s(self) -> float:
        return median(self.steps_s)


@dataclass(frozen=True)
class _Option:
    knob: Knob
    candidate: Candidate
    settings: Settings
    factor: float
    cost_s: float

    @property
    def key(self) -> tuple[str, str]:
        return self.knob.name, str(self.candidate.value)


class Search:
    def __init__(
        self,
        s: Situation,
        start: Settings,
        knobs: Sequence[Knob],
        tries: Tries,
        *,
        steps_left: float,
        limit_s: float = LIMIT_S,
        isolated: bool = True,
        analyze: bool = False,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`start`: settings as they would be without a trial; pinned ones are never turned.

        `analyze`: also try what can't pay in the steps that are left; what is kept must pay all the same.
        """
        self._s, self._tries, self._steps_left, self._limit_s = s, tries, steps_left, limit_s
        self._knobs = [knob for knob in knobs if knob.name not in s.pins and (isolated or not knob.risky)]
        self._isolated, self._analyze, self._clock, self._say = isolated, analyze, clock, say
        self._began_s = clock()
        self._start = start
        self.reference = with_values(start, {knob.name: knob.off for knob in self._knobs})
        self.entries: list[Entry] = []
        self._paired: dict[str, Any] | None = None
        self._done: set[tuple[str, str]] = set()
        self._compiling_s = 0.0  # as it was seen here
        self._untried: dict[str, Any] = {}  # knobs that nobody had time for, and what they are by default

    def run(self) -> Receipt:
        if not self._analyze and (why := self._not_worth_it()) is not None:
            return self._receipt(None, None, why)
        try:
            if (why := self._fit()) is not None:
                return self._receipt(None, None, why)
            first = self._tries.attempt(Ask(self.reference.to_dict(), None, self.reference.to_dict(), _MEASURE_S))
            if first.failure == NOT_RECORDED:
                return self._receipt(None, None, "no trial of this model was made on this machine yet")
            if not first.ran:
                return self._receipt(None, None, f"the reference could not be measured: {first.failure}: {first.why}")
            if first.check is not None and not first.check["passed"]:
                return self._receipt(None, first, f"nothing can be proven here: {first.check['why']}")
            standing = _Standing(self.reference, first.steps_s)
            training = SideBySide(self._tries, self.reference, standing.step_s, draws=first.draws)
        except KeyboardInterrupt:
            return self._receipt(None, None, f"{INTERRUPTED} before anything was proven")
        proven, stopped = self._greedy(standing, training)
        by_turns = self._s.device.type == "cpu"  # on a device the arms' own clocks are enough
        if by_turns and proven.settings != self.reference and not stopped.startswith(INTERRUPTED):
            proven, first = self._confirmed(proven, first)
        return self._receipt(proven, first, stopped)

    def _fit(self) -> str | None:
        """On a device: split the batch of the reference, if all of it would not fit. Says why, if no split does."""
        if self._s.device.type == "cpu" or self.reference.micro_batch:
            return None
        batch = self._s.job.batch
        few = max(1, batch // 16)
        vary = self._s.job.data.train.shapes_vary  # then the worst batches are looked at, whole: there is nothing to fit
        asked = [batch] if vary else sorted({few, min(batch, 2 * few)})
        probes = [self._tries.held(self.reference.to_dict(), rows) for rows in asked]
        if failed := [probe for probe in probes if probe.failure]:
            what = "the longest and the largest batch" if vary else f"{failed[0].rows} samples at a time"
            return f"{what} do not fit: {failed[0].failure}: {failed[0].why}"
        rows = batch if vary else fitting_rows(probes, batch)
        if rows < batch and "micro_batch" in {knob.name for knob in self._knobs}:
            self._say(f"{batch} samples at once would not fit in float32: the reference takes {rows} at a time")
            self.reference = replace(self.reference, micro_batch=rows)
        return None

    def _confirmed(self, proven: _Standing, first: Report) -> tuple[_Standing, Report]:
        """All changes together beside the reference, by turns. Nobody is left slower than where they started."""
        self._say("all of it beside the plain step")
        ask = Ask(proven.settings.to_dict(), self.reference.to_dict(), self.reference.to_dict(), _MEASURE_S)
        try:
            whole = self._tries.attempt(ask)
        except KeyboardInterrupt:
            return proven, first
        if not whole.ran or not whole.against_s:
            return proven, first
        if _compared(whole, proven).better is False:
            self._drop_all("together with the others it is slower than the plain step")
            return _Standing(self.reference, whole.against_s), replace(first, steps_s=whole.against_s)
        return _Standing(proven.settings, whole.steps_s), replace(first, steps_s=whole.against_s)

    # ---- the loop ----

    def _greedy(self, standing: _Standing, training: SideBySide) -> tuple[_Standing, str]:
        reference_s, proven, safe, stopped = standing.step_s, standing, standing, ""
        try:
            while not stopped:
                option = self._best(standing)
                if option is None:
                    stopped = "the rest can't pay" if self._options(standing) else "nothing is left to try"
                elif self._spent_s() + option.cost_s > self._limit_s:
                    stopped = f"the {show_seconds(self._limit_s)} for planning are spent"
                else:
                    standing = self._try(option, standing, reference_s)
                    if option.knob.lossy and standing.settings == option.settings:
                        proven = standing = self._trained(proven, standing, training)
                    safe = standing  # a knob that is not lossy is proven by its one step
            return self._trained(proven, standing, training), stopped
        except KeyboardInterrupt:
            self._drop_after(safe)
            return safe, f"{INTERRUPTED}: what was proven until then is kept"
        finally:
            self._leave_untried(standing)

    def _try(self, option: _Option, standing: _Standing, reference_s: float) -> _Standing:
        self._done.add(option.key)
        self._say(f"trying {_named(option)}: should be {option.factor:.2f}x")
        slowest_s = _SLOWER * max(standing.step_s, reference_s)
        patience_s = _PATIENCE_S + _PATIENCE * option.cost_s + _STEPS_LOOKED_AT * slowest_s
        arms = (option.settings.to_dict(), standing.settings.to_dict(), self.reference.to_dict())
        ask = Ask(*arms, _MEASURE_S, slowest_s, patience_s)
        report = self._tries.attempt(ask)
        if report.failure == NOT_RECORDED:
            return standing
        found = None if not report.ran else _compared(report, standing)
        if option.settings.compile != "off":
            self._compiling_s = max(self._compiling_s, report.first_s or 0.0)
        why_not = self._why_not(option, report, found, standing)
        entry = _entry(
            option, value_of(standing.settings, option.knob.name), report, found, why_not, self._pays(report, standing)
        )
        self.entries.append(entry)
        self._say(f"  {entry.verdict}: {entry.why}")
        if why_not is not None:
            return standing
        self._done -= {key for key in self._done if option.knob.name in self._meets(key[0]) and self._was_in_vain(key)}
        return _Standing(option.settings, report.steps_s)

    def _why_not(self, option: _Option, report: Report, found: Comparison | None, standing: _Standing) -> str | None:
        if found is None:
            return f"{report.failure}: {report.why}"
        if report.check is None or not report.check["passed"]:
            return "not the same: " + (report.check["why"] if report.check else "the step was not compared")
        gain = 1 / found.ratio
        if found.better is False:
            return f"slower: {gain:.2f}x"
        if found.better is None and not (option.candidate.unless_slower and gain > 1 - _HARMLESS):
            return f"no gain above the noise: {gain:.2f}x [{1 / found.high:.2f}, {1 / found.low:.2f}], n={found.n}"
        saved_s = self._steps_left * _saved_s(report, standing)
        if report.first_s is not None and option.candidate.cost_s and saved_s < report.first_s:
            return f"{gain:.2f}x, but it costs {show_seconds(report.first_s)} once and saves {show_seconds(max(0.0, saved_s))}"
        return None

    def _pays(self, report: Report, standing: _Standing) -> str:
        if not report.steps_s or not report.first_s:
            return ""
        saved_s = _saved_s(report, standing)
        return (
            f"costs {show_seconds(report.first_s)} once, pays in {report.first_s / saved_s:,.0f} steps" if saved_s > 0 else ""
        )

    # ---- what to try next ----

    def _options(self, standing: _Standing) -> list[_Option]:
        now = predict(self._s.job, standing.settings, self._s.ceilings).step_s
        found = []
        for knob in self._knobs:
            for candidate in knob.candidates(self._s, standing.settings):
                settings = with_values(standing.settings, {knob.name: candidate.value})
                if (knob.name, str(candidate.value)) in self._done or conflicts(settings):
                    continue
                then = predict(self._s.job, settings, self._s.ceilings).step_s
                factor = candidate.factor or (now / then if now and then else 1.1)
                again_s = self._compiling_s if standing.settings.compile != "off" else 0.0
                cost_s = candidate.cost_s + again_s + _MEASURE_S + _STEPS_LOOKED_AT * standing.step_s
                found.append(_Option(knob, candidate, settings, factor, cost_s))
        return found

    def _best(self, standing: _Standing) -> _Option | None:
        """Of what is worth a trial, what pays back soonest: so the compiler comes late, and compiles what was found before it.

        What would be taken untried comes first where nothing else pays.
        """

        def rank(one: _Option) -> tuple[bool, float]:
            saves_s = self._saves_s(one, standing)
            pays = saves_s > one.cost_s
            return pays, saves_s / one.cost_s if pays else saves_s - one.cost_s

        return max((one for one in self._options(standing) if self._is_worth_it(one, standing)), key=rank, default=None)

    def _saves_s(self, option: _Option, standing: _Standing) -> float:
        return self._steps_left * standing.step_s * (1 - 1 / option.factor)

    def _is_worth_it(self, option: _Option, standing: _Standing) -> bool:
        if self._is_default(option):
            return True
        if self._analyze:
            return option.factor > 1 + _MARGIN
        return self._saves_s(option, standing) > option.cost_s

    def _is_default(self, option: _Option) -> bool:
        """Without a trial it would be taken: so it is always tried."""
        return bool(value_of(self._start, option.knob.name) == option.candidate.value)

    def _not_worth_it(self) -> str | None:
        """Whether trials could save what their process costs, over what would be taken without any."""
        if not self._knobs:
            return "every knob is pinned"
        start_s = predict(self._s.job, self._start, self._s.ceilings).step_s if self._s.plain.step_s else None
        standing = _Standing(self._start, (start_s or self._s.plain.step_s or _UNKNOWN_STEP_S,))
        cost_s = _START_S.get(self._s.device.type, _START_S["cuda"]) + _MEASURE_S
        whole_s = self._steps_left * standing.step_s
        if whole_s <= cost_s:
            return f"the whole run should take {show_seconds(whole_s)}, and trials would cost {show_seconds(cost_s)} or more"
        best = sum(max(0.0, self._saves_s(option, standing)) for option in self._options(standing))
        if best > cost_s:
            return None
        return f"trials could save {show_seconds(best)} of this run and would cost {show_seconds(cost_s)} or more"

    def _meets(self, name: str) -> tuple[str, ...]:
        return next((knob.meets for knob in self._knobs if knob.name == name), ())

    def _was_in_vain(self, key: tuple[str, str]) -> bool:
        """Tried and without gain, once: after a second time it stays so."""
        tried = [entry for entry in self.entries if (entry.name, str(entry.value)) == key]
        return len(tried) == 1 and tried[0].why.startswith("no gain")

    # ---- proof by training ----

    def _trained(self, proven: _Standing, standing: _Standing, training: SideBySide) -> _Standing:
        """Train both arms on the same data. What does not learn as well is taken back, the last lossy knob first."""
        if standing.settings == proven.settings:
            return proven
        while True:
            verdict = training.verdict(standing.settings)
            if verdict["passed"]:
                self._paired = verdict
                return standing
            lossy = {knob.name for knob in self._knobs if knob.lossy}
            kept = [entry for entry in self.entries if entry.verdict == KEPT and entry.name in lossy]
            since = [entry for entry in kept if value_of(proven.settings, entry.name) != entry.value]
            if not since:
                self._drop_after(proven)
                return proven
            standing = self._without(since[-1], standing, verdict["why"])
            if standing.settings == proven.settings:
                return proven

    def _without(self, entry: Entry, standing: _Standing, why: str) -> _Standing:
        self._rejected_after_all(entry, why)
        settings = with_values(standing.settings, {entry.name: entry.instead_of})
        report = self._tries.attempt(Ask(settings.to_dict(), None, self.reference.to_dict(), _MEASURE_S))
        return _Standing(settings, report.steps_s or standing.steps_s)

    def _drop_after(self, proven: _Standing) -> None:
        for entry in [entry for entry in self.entries if entry.verdict == KEPT]:
            if value_of(proven.settings, entry.name) != entry.value:
                self._rejected_after_all(entry, "not proven by training")

    def _drop_all(self, why: str) -> None:
        for entry in [entry for entry in self.entries if entry.verdict == KEPT]:
            self._rejected_after_all(entry, why)

    def _rejected_after_all(self, entry: Entry, why: str) -> None:
        place = self.entries.index(entry)
        self.entries[place] = replace(entry, verdict=REJECTED, why=why)

    # ---- the receipt ----

    def _leave_untried(self, standing: _Standing) -> None:
        tried = {(entry.name, str(entry.value)) for entry in self.entries}
        self._done.clear()
        for option in self._options(standing):
            if option.key not in tried:
                saves, costs = show_seconds(max(0.0, self._saves_s(option, standing))), show_seconds(option.cost_s)
                why = f"should save {saves} of this run, a trial costs {costs}"
                if self._is_default(option):
                    why = "as by default: there was no time to try it"
                    self._untried[option.knob.name] = option.candidate.value
                stands = value_of(standing.settings, option.knob.name)
                self.entries.append(Entry(option.knob.name, option.candidate.value, stands, UNTRIED, why, option.factor))

    def _with_defaults(self, settings: Settings) -> Settings:
        """Who has no patience for trials is not left without what a run takes untried."""
        filled = with_values(settings, self._untried)
        return settings if conflicts(filled) else filled

    def _spent_s(self) -> float:
        return max(0.0, self._clock() - self._began_s)

    def _receipt(self, proven: _Standing | None, first: Report | None, stopped: str) -> Receipt:
        return Receipt(
            reference=self.reference.to_dict(),
            settings=self._with_defaults(proven.settings if proven else self.reference).to_dict(),
            entries=tuple(self.entries),
            reference_step_s=median(first.steps_s) if first is not None and first.steps_s else None,
            step_s=proven.step_s if proven else None,
            paired=self._paired,
            isolated=self._isolated,
            stopped=stopped,
            took_s=self._spent_s(),
        )


def _compared(report: Report, standing: _Standing) -> Comparison:
    """Of seconds: below 1 is faster."""
    if report.against_s:
        return compare_paired(report.steps_s, report.against_s, prefer="min", margin=_MARGIN)
    return compare(report.steps_s, standing.steps_s, prefer="min", margin=_MARGIN)


def _saved_s(report: Report, standing: _Standing) -> float:
    """A step, by the times that were taken side by side where there are any."""
    return (median(report.against_s) if report.against_s else standing.step_s) - median(report.steps_s)


def _entry(option: _Option, stood: Any, report: Report, found: Comparison | None, why_not: str | None, pays: str) -> Entry:
    gained = "" if found is None else f"{1 / found.ratio:.2f}x what stood before; gradients agree"
    kept_why = "; ".join(part for part in (gained, pays if option.candidate.cost_s else "") if part)
    return Entry(
        name=option.knob.name,
        value=option.candidate.value,
        instead_of=stood,
        verdict=KEPT if why_not is None else REJECTED,
        why=kept_why if why_not is None else why_not,
        predicted=option.factor,
        measured=None if found is None else 1 / found.ratio,
        low=None if found is None else 1 / found.high,
        high=None if found is None else 1 / found.low,
        n=0 if found is None else found.n,
        step_s=median(report.steps_s) if report.steps_s else None,
        against_s=median(report.against_s) if report.against_s else None,
        first_s=report.first_s,
        peak_bytes=report.peak_bytes,
        check=report.check,
        took_s=report.took_s,
    )


def _named(option: _Option) -> str:
    return f"{option.knob.name.replace('_', ' ')} {show_value(option.candidate.value)}"
