"""Runs and proves the trial of a knob: compares it with the current settings, by one step, and by training if needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median

from flatout.base.units import show_gain, show_seconds
from flatout.engine.settings import Settings, value_of, with_values
from flatout.measure.judging import Judgement, Rejection, judge, speed_up, times_of
from flatout.measure.loss_proof import LossVerdict
from flatout.measure.receipt import Entry
from flatout.measure.recording import NOT_RECORDED
from flatout.measure.search import Attempt, Confirmation, NoBaseline
from flatout.measure.standing import Standing, median_s
from flatout.measure.stats import Comparison
from flatout.measure.time_limit import TimeLimit
from flatout.measure.trial_record import TrialRecord
from flatout.plan.options import MARGIN, MEASURE_S, STEPS_LOOKED_AT, KnobOption, Options, SearchTerms, SettingsStanding
from flatout.plan.side_by_side import SideBySide
from flatout.plan.situation import Situation
from flatout.plan.trial_energy import compared, energy_words, joules_of, why_not_repaid
from flatout.plan.trials.reports import OUT_OF_MEMORY, Ask, TrialReport, Tries, fitting_rows

_SLOWER_IN_ALL = "all kept settings together are slower than the baseline, or use more energy"
_SLOWER = 3.0
_PATIENCE_S, _PATIENCE = 20.0, 4.0  # time limit of a trial: this many seconds plus this factor on its expected time

KnobAttempt = Attempt[Settings, TrialReport]


class KnobTrials:
    def __init__(
        self,
        s: Situation,
        options: Options,
        tries: Tries,
        terms: SearchTerms,
        record: TrialRecord,
        time_limit: TimeLimit,
        say: Callable[[str], None],
    ) -> None:
        self._s, self._options, self._tries, self._terms = s, options, tries, terms
        self._record, self._time_limit, self._say = record, time_limit, say
        self.reference = options.reference  # every knob off; the batch is split if it does not fit
        self._reference_s = 0.0
        self.reference_j: float | None = None  # joules of its step
        self._training: SideBySide | None = None

    # ---- how to run it ----

    def baseline(self) -> SettingsStanding | NoBaseline:
        if (why := self._options.why_none()) is not None:
            return NoBaseline(why)
        if (why := self._fit()) is not None:
            return NoBaseline(why)
        first = self._measured(self.reference)
        if first.failure == NOT_RECORDED:
            return NoBaseline("no recorded trials of this model on this machine")
        if not first.ran:
            return NoBaseline(f"the baseline could not be measured: {first.failure}: {first.why}")
        if first.check is not None and not first.check["passed"]:
            why = f"no change can be proven: {first.check['why']}"
            return NoBaseline(why, median_s(first.steps_s))
        standing = Standing(self.reference, first)
        self._reference_s, self.reference_j = standing.step_s, median_s(first.steps_j)
        self._training = SideBySide(self._tries, self.reference, standing.step_s, draws=first.draws)
        return standing

    def _fit(self) -> str | None:
        """On a device: split the baseline's batch if it does not fit. Returns the reason if no split fits."""
        if self._s.device.type == "cpu" or self.reference.micro_batch:
            return None
        batch = self._s.job.batch
        few = max(1, batch // 16)
        vary = self._s.job.data.train.shapes_vary  # then the largest batches are tried whole
        asked = [batch] if vary else sorted({few, min(batch, 2 * few)})
        probes = [self._tries.held(self.reference.to_dict(), rows) for rows in asked]
        if any(probe.failure == NOT_RECORDED for probe in probes):
            return None
        if failed := [probe for probe in probes if probe.failure]:
            what = "the longest and the largest batches" if vary else f"{failed[0].rows} samples at a time"
            how = "do not fit" if failed[0].failure == OUT_OF_MEMORY else "could not be run"
            return f"{what} {how}: {failed[0].failure}: {failed[0].why}"
        rows = batch if vary else fitting_rows(probes, batch)
        if rows < batch and "micro_batch" in self._options.knobs:
            self._say(f"a batch of {batch} does not fit in float32: the baseline uses micro-batches of {rows}")
            self.reference = replace(self.reference, micro_batch=rows)
        return None

    def _measured(self, settings: Settings, against: Settings | None = None) -> TrialReport:
        current = None if against is None else against.to_dict()
        windows = self._options.energy_windows
        return self._tries.attempt(
            Ask(settings.to_dict(), current, self.reference.to_dict(), MEASURE_S, energy_windows=windows)
        )

    def attempt(self, option: KnobOption, standing: SettingsStanding) -> KnobAttempt | None:
        self._say(f"trying {option.named}: {show_gain(option.predicted)} predicted")
        slowest_s = _SLOWER * max(standing.step_s, self._reference_s)
        is_compiled = option.state.compile != "off"
        compiling_s = self._options.compiling_s if is_compiled else 0.0  # the compile cache may be gone
        patience_s = _PATIENCE_S + _PATIENCE * max(option.cost_s, compiling_s) + STEPS_LOOKED_AT * slowest_s
        arms = (option.state.to_dict(), standing.state.to_dict(), self.reference.to_dict())
        ask = Ask(*arms, MEASURE_S, slowest_s, patience_s, self._options.energy_windows)
        report = self._tries.attempt(ask)
        if report.failure == NOT_RECORDED:
            return None
        if is_compiled:
            self._options.compiling_s = max(self._options.compiling_s, report.first_s or 0.0)
        costs, is_energy = compared(self._terms.prefer, report, standing.result)
        worse = "uses more energy" if is_energy else "slower"
        found = judge(report, costs, margin=MARGIN, unless_slower=option.candidate.unless_slower, worse=worse)
        if found.kept:
            found = (self._weighed_energy if is_energy else self._weighed)(option, report, standing, found)
        return Attempt(found, report, standing)

    def _weighed(self, option: KnobOption, report: TrialReport, standing: SettingsStanding, found: Judgement) -> Judgement:
        """Compares the time saved with the one-off cost. Without a measured gain there is nothing to compare."""
        assert found.speed is not None
        is_faster, ratio = found.speed.better, f"{found.speed.ratio:.2f}x"
        gained = f"{f'{ratio} faster' if is_faster else f'no slower ({ratio})'}; gradients agree"
        if not found.speed.better or not option.candidate.cost_s:
            return replace(found, why=gained)
        saved_s = (median(report.against_s) if report.against_s else standing.step_s) - median(report.steps_s)  # per step
        in_all_s = self._terms.steps_left * saved_s
        # if both sides are compiled, most of the first step's time is not caused by this change
        its_own = option.state.compile == "off" or option.candidate.compiles_anew
        once_s = report.first_s or 0.0 if its_own else option.candidate.cost_s
        if in_all_s < once_s:
            costs = f"it adds {show_seconds(once_s)} at start and saves only {show_seconds(max(0.0, in_all_s))}"
            return replace(found, rejection=Rejection.NOT_REPAID, why=f"{show_gain(found.speed.ratio)}, but {costs}")
        if its_own and once_s and saved_s > 0:
            gained += f"; adds {show_seconds(once_s)} at start, repaid after {once_s / saved_s:,.0f} steps"
        return replace(found, why=gained)

    def _weighed_energy(
        self, option: KnobOption, report: TrialReport, standing: SettingsStanding, found: Judgement
    ) -> Judgement:
        joules = joules_of(report, standing.result)
        assert found.speed is not None and joules is not None
        times = times_of(report, standing.result)
        words = f"{energy_words(joules, found.speed)}, {show_gain(speed_up(times, MARGIN).ratio)} the speed"
        its_own = option.state.compile == "off" or option.candidate.compiles_anew
        if found.speed.better and option.candidate.cost_s:
            once_s = report.first_s or 0.0 if its_own else option.candidate.cost_s
            if why := why_not_repaid(joules, median(times.was_s), once_s, self._terms.steps_left):
                return replace(found, rejection=Rejection.NOT_REPAID, why=f"{words}, but {why}")
        return replace(found, why=f"{words}; gradients agree")

    def _compared(self, trial: TrialReport, baseline: TrialReport) -> Comparison:
        return speed_up(compared(self._terms.prefer, trial, baseline)[0], MARGIN)

    def together(
        self, standing: SettingsStanding, baseline: SettingsStanding, *, may_measure: bool
    ) -> Iterator[Confirmation[TrialReport]]:
        """In turns on a CPU. On a device the separate times are precise enough. Changes kept because they are no slower may
        each be slower by less than the noise, and together by more."""
        if self._s.device.type != "cpu":
            speed = self._compared(replace(standing.result, against_s=(), against_j=()), baseline.result)
            yield Confirmation(standing.result, baseline.result, speed)
        elif may_measure:
            self._say("timing all kept settings together against the baseline")
            whole = self._measured(standing.state, self.reference)
            if whole.ran and whole.against_s:
                plain = replace(baseline.result, steps_s=whole.against_s, steps_j=whole.against_j)
                yield Confirmation(whole, plain, self._compared(whole, plain))

    def note_together(self, together: Confirmation[TrialReport], stays: bool) -> None:
        if not stays:
            self._record.take_all_back(_SLOWER_IN_ALL)

    # ---- how to prove it ----

    def prove(self, option: KnobOption, attempt: KnobAttempt, proven: SettingsStanding) -> KnobAttempt:
        """A knob that is not lossy is proven by one step."""
        if not option.knob.lossy:
            return attempt
        unseen = option.predicted if option.candidate.unless_slower else 1.0
        verdict = self._trained(Standing(option.state, attempt.result), proven, unseen)
        if not verdict["passed"]:
            return attempt.rejected(Rejection.UNPROVEN, verdict["why"])
        return replace(attempt, proof=verdict)

    def _trained(self, standing: SettingsStanding, proven: SettingsStanding, unseen: float = 1.0) -> LossVerdict:
        """Train both on the same data. `unseen`: expected speed-up of the run that no trial has shown yet."""
        assert self._training is not None
        most_s = self._time_limit.left_s  # at most the time left for planning, and at most the time that the run would save
        if not self._terms.analyze:
            saved_s = proven.step_s - standing.step_s + standing.step_s * (1 - 1 / unseen)
            most_s = min(most_s, self._terms.steps_left * saved_s)
        return self._training.verdict(standing.state, standing.step_s, most_s, self._say)

    # ---- how to take it back ----

    def is_in(self, entry: Entry, state: Settings) -> bool:
        return bool(value_of(state, entry.name) == entry.value)

    def without(self, entry: Entry, standing: SettingsStanding) -> SettingsStanding:
        settings = with_values(standing.state, {entry.name: entry.instead_of})
        report = self._measured(settings)
        return Standing(settings, report if report.steps_s else replace(standing.result, settings=settings.to_dict()))

    def prove_state(self, standing: SettingsStanding, proven: SettingsStanding) -> LossVerdict:
        return self._trained(standing, proven)
