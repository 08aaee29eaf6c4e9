"""The shared search: try a change, prove that the result is the same, keep it if it is faster; then try the next one.

    baseline ──► next option ──► attempt ──► judged ──► proven ──► kept: the new current state
                     ▲                          │          │
                     └──────── rejected ◄───────┴──────────┘
    at the end: useless changes are dropped, and all kept changes are timed together against the baseline.

A client provides three things, each a protocol below: what to try (`WhatToTry`), how to run a trial (`HowToRun`) and how to
prove it (`HowToProve` for one change, `HowToConfirm` for all of them together). `WhatIsTold` records trials and reports to the
user. The type of a state is the client's choice (settings, remedies, a layout); the search only compares states and passes them
on. The other parts are in modules next to this one: the time limit, the standing (current state), the judgement of a trial
(`judging`), the record of trials (`trial_record`), the proof by losses (`loss_proof`), dropping changes (`taking_back`), the
receipt, and recordings that replay (`recording`). Ctrl-C ends a search with the changes proven so far, unless the client
raises.

Rules for every client: a failed trial is rejected and the search continues; a change with a different result is rejected
whatever its speed; "not enough evidence" is a rejection; the result is never slower than the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from flatout.measure.judging import Judgement, Rejection
from flatout.measure.loss_proof import LossVerdict
from flatout.measure.receipt import Entry, Receipt
from flatout.measure.standing import ResultT, Standing, StateT, median_s
from flatout.measure.stats import Comparison
from flatout.measure.taking_back import NOT_PROVEN, TakingBack
from flatout.measure.time_limit import TimeLimit
from flatout.measure.trial_record import TrialRecord

INTERRUPTED = "interrupted"

StateOut = TypeVar("StateOut", covariant=True)


class Option(Protocol[StateOut]):
    """A change to try."""

    @property
    def state(self) -> StateOut: ...  # with the change applied


OptionT = TypeVar("OptionT", bound=Option[Any])
OfferedT = TypeVar("OfferedT", bound=Option[Any], covariant=True)
TriedT = TypeVar("TriedT", bound=Option[Any], contravariant=True)


@dataclass(frozen=True)
class Attempt(Generic[StateT, ResultT]):
    """`standing`: the state it was compared with, measured again if needed. `proof`: by losses, if there is one."""

    judgement: Judgement
    result: ResultT
    standing: Standing[StateT, ResultT]
    proof: LossVerdict | None = None

    def rejected(self, rejection: Rejection, why: str) -> Attempt[StateT, ResultT]:
        return replace(self, judgement=replace(self.judgement, rejection=rejection, why=why))


@dataclass(frozen=True)
class Confirmation(Generic[ResultT]):
    """All kept changes, timed against the baseline. `failure`: why they could not be timed."""

    result: ResultT
    baseline: ResultT
    speed: Comparison | None = None
    failure: str = ""

    @property
    def is_clear(self) -> bool:
        return bool(self.failure) or self.speed is None or self.speed.better is not None


@dataclass(frozen=True)
class NoBaseline:
    """Why the search can't start."""

    why: str
    reference_step_s: float | None = None
    step_s: float | None = None


class WhatToTry(Protocol[StateT, ResultT, OfferedT]):
    def next_option(self, standing: Standing[StateT, ResultT]) -> OfferedT | None:
        """The most promising option from here; None if none is worth a trial or there is no time."""
        ...

    def why_no_more(self, standing: Standing[StateT, ResultT]) -> str: ...

    def untried(self, standing: Standing[StateT, ResultT]) -> Iterable[Entry]:
        """Options left when the search ends, each with the reason."""
        ...


class HowToRun(Protocol[StateT, ResultT, TriedT]):
    def baseline(self) -> Standing[StateT, ResultT] | NoBaseline: ...

    def attempt(self, option: TriedT, standing: Standing[StateT, ResultT]) -> Attempt[StateT, ResultT] | None:
        """Run and judge a trial. None: it can't run here, and gets no entry in the receipt."""
        ...


class HowToProve(Protocol[StateT, ResultT, TriedT]):
    def prove(
        self, option: TriedT, attempt: Attempt[StateT, ResultT], proven: Standing[StateT, ResultT]
    ) -> Attempt[StateT, ResultT]:
        """Add a `proof`, and reject the attempt if it fails. Return it unchanged if the check of its first step is enough.
        `proven`: the last state with a proof."""
        ...


class HowToConfirm(Protocol[StateT, ResultT]):
    def together(
        self, standing: Standing[StateT, ResultT], baseline: Standing[StateT, ResultT], *, may_measure: bool
    ) -> Iterator[Confirmation[ResultT]]:
        """Time `standing` against `baseline`, with more repeats in each round, until the result is clear. Without `may_measure`
        (after Ctrl-C), use only known times."""
        ...

    def note_together(self, together: Confirmation[ResultT], stays: bool) -> None: ...


class WhatIsTold(Protocol[StateT, ResultT, TriedT]):
    def note(self, option: TriedT, attempt: Attempt[StateT, ResultT]) -> None:
        """Record a finished trial."""
        ...

    def interrupted(self) -> None:
        """Called on Ctrl-C. The search ends with the changes proven so far, unless this raises."""
        ...


class Search(Generic[StateT, ResultT, OptionT]):
    def __init__(
        self,
        options: WhatToTry[StateT, ResultT, OptionT],
        arms: HowToRun[StateT, ResultT, OptionT],
        told: WhatIsTold[StateT, ResultT, OptionT],
        record: TrialRecord,
        time_limit: TimeLimit,
        *,
        proof: HowToProve[StateT, ResultT, OptionT] | None = None,
        confirming: HowToConfirm[StateT, ResultT] | None = None,
        must_gain: bool = False,
        taking_back: TakingBack[StateT, ResultT] | None = None,
    ) -> None:
        """Without `proof`, the judgement of a trial is enough. Without `confirming`, changes replace each other, so the current
        state was already timed. `must_gain`: all kept changes together must be faster than the baseline, not just no slower.
        Without `taking_back`, each change is proven before it is kept, and stays."""
        self._options, self._arms, self._proof, self._told = options, arms, proof, told
        self._record, self._time_limit = record, time_limit
        self._confirming, self._must_gain, self._taking_back = confirming, must_gain, taking_back
        self.is_interrupted = False
        self._paired: LossVerdict | None = None
        self._standing: Standing[StateT, ResultT] | None = None

    @property
    def standing(self) -> Standing[StateT, ResultT] | None:
        """The current or final state; None before there is a baseline."""
        return self._standing

    def run(self) -> Receipt:
        try:
            baseline = self._arms.baseline()
        except KeyboardInterrupt:
            self._interrupted()
            return self._receipt(f"{INTERRUPTED} before any change was proven")
        if isinstance(baseline, NoBaseline):
            return self._receipt(baseline.why, baseline.reference_step_s, baseline.step_s)
        standing, stopped = self._greedy(baseline)
        baseline, self._standing = self._confirmed(standing, baseline)
        if self._standing.state == baseline.state:  # no change was kept
            self._standing, self._paired = baseline, None
        return self._receipt(stopped, median_s(baseline.result.steps_s), median_s(self._standing.result.steps_s))

    def _interrupted(self) -> None:
        self.is_interrupted = True
        self._told.interrupted()

    # ---- the loop ----

    def _greedy(self, standing: Standing[StateT, ResultT]) -> tuple[Standing[StateT, ResultT], str]:
        proven = standing
        try:
            while (option := self._options.next_option(standing)) is not None:
                standing, proven = self._tried(option, standing, proven)
            stopped = self._options.why_no_more(standing)
            self._leave_untried(standing)
            if self._taking_back is not None:
                standing, proof = self._taking_back.without_idle(standing, proven)
                self._paired = proof or self._paired
        except KeyboardInterrupt:
            self._interrupted()
            self._leave_untried(standing)
            stopped = f"{INTERRUPTED}; changes proven so far are kept"
        return standing, stopped

    def _tried(
        self, option: OptionT, standing: Standing[StateT, ResultT], proven: Standing[StateT, ResultT]
    ) -> tuple[Standing[StateT, ResultT], Standing[StateT, ResultT]]:
        """The new standing, and the part of it that is proven by losses."""
        attempt = self._arms.attempt(option, standing)
        if attempt is None:
            return standing, proven
        if attempt.judgement.kept and self._proof is not None:
            try:
                attempt = self._proof.prove(option, attempt, proven)
            except KeyboardInterrupt:
                self._told.note(option, attempt.rejected(Rejection.UNPROVEN, NOT_PROVEN))
                raise
        self._told.note(option, attempt)
        if attempt.judgement.kept:
            standing = Standing(option.state, attempt.result)
            if attempt.proof is not None:
                proven, self._paired = standing, attempt.proof
            return standing, proven
        standing = attempt.standing
        if attempt.judgement.rejection is Rejection.UNPROVEN and self._taking_back is not None:
            # did this change fail the proof, or one that was kept since the last proof?
            standing, proof = self._taking_back.proven(standing, proven)
            proven, self._paired = standing, proof or self._paired
        return standing, proven

    def _leave_untried(self, standing: Standing[StateT, ResultT]) -> None:
        for entry in self._options.untried(standing):
            self._record.add(entry)

    # ---- all together ----

    def _confirmed(
        self, standing: Standing[StateT, ResultT], baseline: Standing[StateT, ResultT]
    ) -> tuple[Standing[StateT, ResultT], Standing[StateT, ResultT]]:
        """Baseline and standing, each with its latest times. The result is never slower than the baseline."""
        if standing.state == baseline.state or self._confirming is None:
            return baseline, standing
        together: Confirmation[ResultT] | None = None
        try:
            for together in self._confirming.together(standing, baseline, may_measure=not self.is_interrupted):
                if together.is_clear:
                    break
        except KeyboardInterrupt:
            self._interrupted()
            return baseline, standing
        if together is None:
            return baseline, standing
        better = False if together.failure or together.speed is None else together.speed.better
        stays = better is True if self._must_gain else better is not False
        self._confirming.note_together(together, stays)
        baseline = Standing(baseline.state, together.baseline)
        return baseline, Standing(standing.state, together.result) if stays else baseline

    def _receipt(self, stopped: str, reference_step_s: float | None = None, step_s: float | None = None) -> Receipt:
        """The client fills in the rest itself: settings, machine, versions."""
        return Receipt(
            reference={},
            settings={},
            entries=self._record.entries,
            reference_step_s=reference_step_s,
            step_s=step_s,
            paired=self._paired,
            stopped=stopped,
            took_s=self._time_limit.spent_s,
        )
