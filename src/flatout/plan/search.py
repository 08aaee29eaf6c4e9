"""Which knobs to turn: the most promising first, each tried from where the search stands, until the rest can't pay.

Measuring and choosing are apart: `tries` may be a process that runs arms, or a recording of one that did.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from flatout.base.units import show_gain, show_seconds
from flatout.engine.settings import Settings, value_of, with_values
from flatout.measure.receipt import KEPT, REJECTED, UNTRIED, Entry, Receipt
from flatout.measure.stats import Comparison, compare, compare_paired
from flatout.plan.knobs.all import conflicts
from flatout.plan.knobs.knob import Knob, Priced
from flatout.plan.options import MARGIN, MEASURE_S, STEPS_LOOKED_AT, Option, Options, Standing, Terms
from flatout.plan.price import cheap_s, prices
from flatout.plan.side_by_side import SideBySide
from flatout.plan.situation import Situation
from flatout.plan.trials.reports import (
    CTRL_C,
    INTERRUPTED,
    NOT_RECORDED,
    OUT_OF_MEMORY,
    Ask,
    Report,
    Tries,
    fitting_rows,
)

_HARMLESS = 0.02  # what is good for something else may seem to cost, within the noise
_SLOWER_IN_ALL = "together with the others it is slower than the plain step"
_SLOWER = 3.0
_PATIENCE_S, _PATIENCE = 20.0, 4.0  # with a trial: some time, and so many times what it should take


class Search:
    def __init__(
        self,
        s: Situation,
        start: Settings,
        knobs: Sequence[Knob],
        tries: Tries,
        terms: Terms,
        *,
        priced: Sequence[Priced] = (),
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`start`: settings as they would be without a trial; pinned ones are never turned. `priced`: what keeps a promise."""
        self._s, self._tries, self._terms, self._clock, self._say = s, tries, terms, clock, say
        self._knobs = [knob for knob in knobs if knob.name not in s.pins and (terms.isolated or not knob.risky)]
        self._options = Options(s, start, self._knobs, terms)
        self._priced, self._began_s = priced, clock()
        self.reference = with_values(start, {knob.name: knob.off for knob in self._knobs})
        self.entries: list[Entry] = []
        self._paired: dict[str, Any] | None = None
        self._done: set[tuple[str, str]] = set()
        self._untried: dict[str, Any] = {}  # knobs that nobody had time for, and what they are by default

    @property
    def why_none(self) -> str | None:
        """Why no trial could pay; None: some could, or need not."""
        return None if self._terms.analyze or self._terms.free else self._options.why_none()

    def run(self) -> Receipt:
        if (why := self.why_none) is not None:
            return self._receipt(None, None, why)
        try:
            if (why := self._fit()) is not None:
                return self._receipt(None, None, why)
            first = self._tries.attempt(Ask(self.reference.to_dict(), None, self.reference.to_dict(), MEASURE_S))
            if first.failure == NOT_RECORDED:
                return self._receipt(None, None, "no trial of this model was made on this machine yet")
            if not first.ran:
                return self._receipt(None, None, f"the reference could not be measured: {first.failure}: {first.why}")
            if first.check is not None and not first.check["passed"]:
                return self._receipt(None, first, f"nothing can be proven here: {first.check['why']}")
            standing = Standing(self.reference, first.steps_s)
            training = SideBySide(self._tries, self.reference, standing.step_s, draws=first.draws)
        except KeyboardInterrupt:
            self._say_interrupted()
            return self._receipt(None, None, f"{INTERRUPTED} before anything was proven")
        proven, stopped = self._greedy(standing, training)
        by_turns = self._s.device.type == "cpu"  # on a device the arms' own clocks are enough
        if not by_turns:
            proven = self._not_slower(proven, first)
        elif proven.settings != self.reference and not stopped.startswith(INTERRUPTED):
            proven, first = self._confirmed(proven, first)
        if not stopped.startswith(INTERRUPTED):
            self.entries += self._prices(proven)
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
        if any(probe.failure == NOT_RECORDED for probe in probes):
            return None
        if failed := [probe for probe in probes if probe.failure]:
            what = "the longest and the largest batch" if vary else f"{failed[0].rows} samples at a time"
            how = "do not fit" if failed[0].failure == OUT_OF_MEMORY else "could not be tried"
            return f"{what} {how}: {failed[0].failure}: {failed[0].why}"
        rows = batch if vary else fitting_rows(probes, batch)
        if rows < batch and "micro_batch" in {knob.name for knob in self._knobs}:
            self._say(f"{batch} samples at once would not fit in float32: the reference takes {rows} at a time")
            self.reference = replace(self.reference, micro_batch=rows)
        return None

    def _confirmed(self, proven: Standing, first: Report) -> tuple[Standing, Report]:
        """All changes together beside the reference, by turns. Nobody is left slower than where they started."""
        self._say("all of it beside the plain step")
        ask = Ask(proven.settings.to_dict(), self.reference.to_dict(), self.reference.to_dict(), MEASURE_S)
        try:
            whole = self._tries.attempt(ask)
        except KeyboardInterrupt:
            self._say_interrupted()
            return proven, first
        if not whole.ran or not whole.against_s:
            return proven, first
        if _compared(whole, proven).better is False:
            self._drop_all(_SLOWER_IN_ALL)
            return Standing(self.reference, whole.against_s), replace(first, steps_s=whole.against_s)
        return Standing(proven.settings, whole.steps_s), replace(first, steps_s=whole.against_s)

    def _not_slower(self, proven: Standing, first: Report) -> Standing:
        """What stays unless it is slower may be so by less than can be told, and all of it together by more."""
        if compare(proven.steps_s, first.steps_s, prefer="min", margin=MARGIN).better is not False:
            return proven
        self._drop_all(_SLOWER_IN_ALL)
        return Standing(self.reference, first.steps_s)

    def _prices(self, proven: Standing) -> list[Entry]:
        """What promises cost, where that is asked for or cheap to know."""
        left_s = self._terms.limit_s - self._spent_s()
        if not self._terms.analyze:
            left_s = min(left_s, cheap_s(self._terms.limit_s, self._terms.steps_left * proven.step_s))
        first_s = max((entry.first_s or 0.0 for entry in self.entries if entry.verdict == KEPT), default=0.0)
        arms = (proven.settings, self.reference, proven.steps_s)
        return prices(
            self._s, self._priced, self._tries, *arms, first_s=first_s, most_s=left_s, interrupted=self._say_interrupted
        )

    def _say_interrupted(self) -> None:
        """At once: whoever pressed Ctrl-C and sees a run begin must know why."""
        goes_on = "the plan is shown with" if self._terms.analyze else "training starts now with"
        self._say(f"{CTRL_C}no more settings are tried; {goes_on} what was measured so far. Press Ctrl-C again to stop.")

    # ---- the loop ----

    def _greedy(self, standing: Standing, training: SideBySide) -> tuple[Standing, str]:
        reference_s, proven, safe, stopped = standing.step_s, standing, standing, ""
        try:
            while not stopped:
                worth = self._options.best_first(standing, self._done)
                left_s = self._terms.limit_s - self._spent_s()
                option = next((one for one in worth if one.cost_s <= left_s), None)
                if option is None:
                    stopped = self._why_no_more(worth, standing)
                else:
                    standing = self._try(option, standing, reference_s)
                    if option.knob.lossy and standing.settings == option.settings:
                        unseen = option.factor if option.candidate.unless_slower else 1.0
                        proven = standing = self._trained(proven, standing, training, unseen)
                    safe = standing  # a knob that is not lossy is proven by its one step
            return self._without_idle(proven, standing, training), stopped
        except KeyboardInterrupt:
            self._say_interrupted()
            self._drop_after(safe)
            return safe, f"{INTERRUPTED}: what was proven until then is kept"
        finally:
            self._leave_untried(standing)

    def _why_no_more(self, worth: Sequence[Option], standing: Standing) -> str:
        if worth:
            spent, limit = show_seconds(self._spent_s()), show_seconds(self._terms.limit_s)
            cheapest = min(worth, key=lambda one: one.cost_s)
            costs = f"would cost {show_seconds(cheapest.cost_s)}"
            return f"{spent} of the {limit} for planning are spent, and the next trial, {cheapest.named}, {costs}"
        return "the rest can't pay" if self._options.left(standing, self._done) else "nothing is left to try"

    def _try(self, option: Option, standing: Standing, reference_s: float) -> Standing:
        self._done.add(option.key)
        self._say(f"trying {option.named}: should be {show_gain(option.factor)}")
        slowest_s = _SLOWER * max(standing.step_s, reference_s)
        compiling_s = self._options.compiling_s if option.settings.compile != "off" else 0.0  # what is kept of it may be gone
        patience_s = _PATIENCE_S + _PATIENCE * max(option.cost_s, compiling_s) + STEPS_LOOKED_AT * slowest_s
        arms = (option.settings.to_dict(), standing.settings.to_dict(), self.reference.to_dict())
        ask = Ask(*arms, MEASURE_S, slowest_s, patience_s)
        report = self._tries.attempt(ask)
        if report.failure == NOT_RECORDED:
            return standing
        found = None if not report.ran else _compared(report, standing)
        if option.settings.compile != "off":
            self._options.compiling_s = max(self._options.compiling_s, report.first_s or 0.0)
        why_not = self._why_not(option, report, found, standing)
        pays = self._pays(option, report, standing) if found is not None and found.better else ""
        entry = _entry(option, value_of(standing.settings, option.knob.name), report, found, why_not, pays)
        self.entries.append(entry)
        self._say(f"  {entry.verdict}: {entry.why}")
        if why_not is not None:
            return standing
        self._done -= {key for key in self._done if option.knob.name in self._meets(key[0]) and self._was_in_vain(key)}
        return Standing(option.settings, report.steps_s)

    def _why_not(self, option: Option, report: Report, found: Comparison | None, standing: Standing) -> str | None:
        if found is None:
            return f"{report.failure}: {report.why}"
        if report.check is None or not report.check["passed"]:
            return "not the same: " + (report.check["why"] if report.check else "the step was not compared")
        gain = 1 / found.ratio
        if found.better is False:
            return f"slower: {gain:.2f}x" if gain >= 0.1 else show_gain(gain)
        if found.better is None:  # what a trial can't see, it can't weigh against a cost either
            if option.candidate.unless_slower and gain > 1 - _HARMLESS:
                return None
            return f"no gain above the noise: {show_gain(gain)} [{1 / found.high:.2f}, {1 / found.low:.2f}], n={found.n}"
        saved_s = self._terms.steps_left * _saved_s(report, standing)
        once_s = option.candidate.cost_s if _is_compiled_either_way(option) else report.first_s or 0.0
        if option.candidate.cost_s and saved_s < once_s:
            return f"{show_gain(gain)}, but it costs {show_seconds(once_s)} once and saves {show_seconds(max(0.0, saved_s))}"
        return None

    def _pays(self, option: Option, report: Report, standing: Standing) -> str:
        once_s, saved_s = 0.0 if _is_compiled_either_way(option) else report.first_s, _saved_s(report, standing)
        return f"costs {show_seconds(once_s)} once, pays in {once_s / saved_s:,.0f} steps" if once_s and saved_s > 0 else ""

    # ---- what to try again ----

    def _meets(self, name: str) -> tuple[str, ...]:
        return next((knob.meets for knob in self._knobs if knob.name == name), ())

    def _was_in_vain(self, key: tuple[str, str]) -> bool:
        """Tried and without gain, once: after a second time it stays so."""
        tried = [entry for entry in self.entries if (entry.name, str(entry.value)) == key]
        return len(tried) == 1 and tried[0].why.startswith("no gain")

    def _without_idle(self, proven: Standing, standing: Standing, training: SideBySide) -> Standing:
        """What was kept in vain goes, if the rest is proven without it."""
        idle: dict[int, Entry] = {}
        while (place := self._kept_in_vain()) is not None:
            idle[place] = self.entries[place]
            standing = self._without(self.entries[place], standing, "no gain, and what it was kept for was not")
        final = self._trained(proven, standing, training)
        for place, entry in idle.items():
            if value_of(final.settings, entry.name) == entry.value:
                self.entries[place] = entry
        return final

    def _kept_in_vain(self) -> int | None:
        """The place of what changes the arithmetic and gained nothing, kept for a knob that it meets and that was not kept."""
        knobs = {knob.name: knob for knob in self._knobs}
        for place, entry in enumerate(self.entries):
            knob, gained = knobs[entry.name], entry.low is not None and entry.low * (1 - MARGIN) > 1
            if entry.verdict == KEPT and knob.lossy and knob.meets and not gained:
                later = {other.name for other in self.entries[place + 1 :] if other.verdict == KEPT}
                if not later.intersection(knob.meets):
                    return place
        return None

    # ---- proof by training ----

    def _trained(self, proven: Standing, standing: Standing, training: SideBySide, unseen: float = 1.0) -> Standing:
        """Train both arms on the same data. What does not learn as well is taken back, the last lossy knob first.

        `unseen`: by which factor the run should be shorter for it, though no trial could show that yet.
        """
        if standing.settings == proven.settings:
            return proven
        while True:
            worth_s = self._worth_s(proven, standing, unseen)
            verdict = training.verdict(standing.settings, standing.step_s, worth_s, self._say)
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

    def _worth_s(self, proven: Standing, standing: Standing, unseen: float) -> float:
        """How long its proof may take: no longer than there is time, and than the run is shorter for it."""
        left_s = self._terms.limit_s - self._spent_s()
        saved_s = proven.step_s - standing.step_s + standing.step_s * (1 - 1 / unseen)
        return left_s if self._terms.analyze else min(left_s, self._terms.steps_left * saved_s)

    def _without(self, entry: Entry, standing: Standing, why: str) -> Standing:
        settings = with_values(standing.settings, {entry.name: entry.instead_of})
        report = self._tries.attempt(Ask(settings.to_dict(), None, self.reference.to_dict(), MEASURE_S))
        self._rejected_after_all(entry, why)
        return Standing(settings, report.steps_s or standing.steps_s)

    def _drop_after(self, proven: Standing) -> None:
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

    def _leave_untried(self, standing: Standing) -> None:
        tried = {(entry.name, str(entry.value)) for entry in self.entries}
        for option in self._options.left(standing, ()):
            if option.key not in tried:
                why = self._why_untried(option, standing)
                if self._options.is_default(option):
                    why = "as by default: there was no time to try it"
                    self._untried[option.knob.name] = option.candidate.value
                stands = value_of(standing.settings, option.knob.name)
                self.entries.append(Entry(option.knob.name, option.candidate.value, stands, UNTRIED, why, option.factor))

    def _why_untried(self, option: Option, standing: Standing) -> str:
        saves_s, costs = self._options.saves_s(option, standing), show_seconds(option.cost_s)
        if saves_s <= 0:
            return "should be no faster here"
        if self._terms.analyze and option.factor > 1 + MARGIN:
            return f"there was no time to try it: a trial costs {costs}"
        return f"should save {show_seconds(saves_s)} of this run, a trial costs {costs}"

    def _with_defaults(self, settings: Settings) -> Settings:
        """Who has no patience for trials is not left without what a run takes untried."""
        filled = with_values(settings, self._untried)
        return settings if conflicts(filled) else filled

    def _spent_s(self) -> float:
        return max(0.0, self._clock() - self._began_s)

    def _receipt(self, proven: Standing | None, first: Report | None, stopped: str) -> Receipt:
        return Receipt(
            reference=self.reference.to_dict(),
            settings=self._with_defaults(proven.settings if proven else self.reference).to_dict(),
            entries=tuple(self.entries),
            reference_step_s=median(first.steps_s) if first is not None and first.steps_s else None,
            step_s=proven.step_s if proven else None,
            paired=self._paired,
            isolated=self._terms.isolated,
            stopped=stopped,
            took_s=self._spent_s(),
        )


def _compared(report: Report, standing: Standing) -> Comparison:
    """Of seconds: below 1 is faster."""
    if report.against_s:
        return compare_paired(report.steps_s, report.against_s, prefer="min", margin=MARGIN)
    return compare(report.steps_s, standing.steps_s, prefer="min", margin=MARGIN)


def _is_compiled_either_way(option: Option) -> bool:
    """Then what its first step took is for the most part no cost of it."""
    return option.settings.compile != "off" and not option.candidate.compiles_anew


def _saved_s(report: Report, standing: Standing) -> float:
    """A step, by the times that were taken side by side where there are any."""
    return (median(report.against_s) if report.against_s else standing.step_s) - median(report.steps_s)


def _entry(option: Option, stood: Any, report: Report, found: Comparison | None, why_not: str | None, pays: str) -> Entry:
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
