"""Tries one remedy at a time on top of the kept ones, and keeps it if it is faster and proven to train the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flatout.base.units import show_seconds
from flatout.boost.proving import Proof, ScriptTrials
from flatout.boost.remedies.all import INSTEAD, LEAVES_COMPUTING, REMEDIES
from flatout.boost.remedies.remedy import STEPS, Offer
from flatout.boost.remedy_trials import CLOSE, Remedies, RemedyAttempt, RemedyOption, RemedyStanding, RemedyTrials, kind_of
from flatout.boost.trial import Told
from flatout.measure.judging import COMPUTES_THE_SAME
from flatout.measure.receipt import ALL_TOGETHER, KEPT, REJECTED, UNTRIED, Entry, Receipt
from flatout.measure.search import Confirmation, Search
from flatout.measure.standing import Standing, median_s
from flatout.measure.time_limit import TimeLimit
from flatout.measure.trial_record import Noted, TrialRecord, entry_of

_PROMISES = 1.05
_COMPUTES = 0.3  # of a step: below that, the step waits for the host or for data
_BUSY = 0.85  # of a step: above that, there is little overhead to remove
_TELLS = (1.15, 0.85)  # predicted above and measured above: the host may hide the gain of faster computing
_SHORTER = 1.25  # steps must be this much shorter before a remedy without speed-up is tried again


class RemedySearch:
    def __init__(
        self,
        tries: ScriptTrials,
        offers: Sequence[Offer],
        say: Callable[[str], None],
        computes_s: float | None = None,
        within_s: float = float("inf"),
        lasts_s: float = float("inf"),
        trial_s: float = 0.0,
    ) -> None:
        """`computes_s`: how long the device computes in an unmodified step. After `within_s` nothing more is tried.
        A remedy's extra start time must be repaid within `lasts_s`. `trial_s`: expected time of a trial's steps."""
        self._tries, self._say, self._computes_s = tries, say, computes_s
        self._time_limit, self._record = TimeLimit(within_s), TrialRecord()
        self._offers = sorted(offers, key=_first_of_all)
        self._too_late = ""
        self._was_late = False
        self.kept: list[tuple[str, Any]] = []
        self.proof = Proof(tries, say)
        precisions = sorted({REMEDIES[offer.name].precision for offer in offers})
        self._trials = RemedyTrials(
            tries, self.proof, self._time_limit, say, lasts_s=lasts_s, trial_s=trial_s, precisions=precisions
        )
        self._together: set[str] = set()  # remedies that were tried together with another
        self._standing: RemedyStanding = Standing((), Told())
        self._turns = self._in_turn()

    @property
    def highest_loss(self) -> float:
        """Of the unmodified script."""
        return self._trials.highest_loss

    @property
    def loss_steps(self) -> int:
        return self._trials.loss_steps

    def run(self, machine: str, versions: Mapping[str, str], at: str) -> Receipt:
        search: Search[Remedies, Told, RemedyOption] = Search(
            self, self._trials, self, self._record, self._time_limit, proof=self._trials, confirming=self, must_gain=True
        )
        receipt = search.run()
        self.kept = list(search.standing.state) if search.standing else []
        return replace(receipt, settings=dict(self.kept), machine=machine, versions=versions, at=at)

    # ---- what to try ----

    def next_option(self, standing: RemedyStanding) -> RemedyOption | None:
        self._standing = standing
        return next(self._turns, None)

    def why_no_more(self, standing: RemedyStanding) -> str:
        return self._too_late or "all remedies that apply to the observed steps were tried"

    def untried(self, standing: RemedyStanding) -> Iterator[Entry]:
        """None: each is recorded in its turn."""
        return iter(())

    def _in_turn(self) -> Iterator[RemedyOption]:
        yield from self._bundle([one for one in self._offers if _is_safe(one)])
        for at, offer in enumerate(self._offers):
            if self._is_late and not self._was_late:
                self._was_late = True
                yield from self._bundle(self._offers[at:])
            yield from self._alone(offer)
            yield from self._beside_another(offer)
        for offer in self._offers:
            yield from self._beside_another(offer)
        for offer in self._offers:
            if self._may_gain_now(offer):
                yield from self._alone(offer)

    @property
    def _is_late(self) -> bool:
        return self._time_limit.spent_s > self._time_limit.limit_s / 2

    def _bundle(self, offers: Sequence[Offer]) -> Iterator[RemedyOption]:
        """Several remedies at once. If that fails, each is tried alone."""
        offers = [one for one in offers if REMEDIES[one.name].measures == STEPS and not REMEDIES[one.name].may_slow]
        replaced = set().union(*(INSTEAD.get(one.name, set()) for one in offers))
        wanted = [one for one in offers if one.name not in replaced and not self._is_pointless(one) and not self._why_not(one)]
        if len(wanted) > 1:
            state = (*self._standing.state, *((one.name, one.value) for one in wanted))
            yield RemedyOption(wanted[0], state, tuple(wanted[1:]))

    def _alone(self, offer: Offer) -> Iterator[RemedyOption]:
        if self._is_pointless(offer):
            return
        if why := self._why_not(offer):
            untried = Entry(offer.name, offer.value, offer.instead_of, UNTRIED, why, offer.predicted)
            self._record.add_instead(untried)
            return
        yield RemedyOption(offer, (*self._standing.state, (offer.name, offer.value)))

    def _beside_another(self, offer: Offer) -> Iterator[RemedyOption]:
        beside = self._hidden_by_launches(offer)
        if beside is None or offer.name in self._together:
            return
        self._together.add(offer.name)
        if not self._is_pointless(offer) and not self._why_not(offer):
            both = ((one.name, one.value) for one in (beside, offer))
            yield RemedyOption(offer, (*self._standing.state, *both), (beside,))

    @property
    def _kept_now(self) -> set[str]:
        return {name for name, _ in self._standing.state}

    def _is_pointless(self, offer: Offer) -> bool:
        """Is the remedy, or one that replaces it, already kept?"""
        return any(name == offer.name or offer.name in INSTEAD.get(name, set()) for name in self._kept_now)

    def _why_not(self, offer: Offer) -> str:
        """Why the remedy is not worth a trial, or ""."""
        if self._time_limit.is_over:
            if not self._too_late:
                self._too_late = f"the {show_seconds(self._time_limit.limit_s)} for trials (--within) are over"
                self._say(f"{self._too_late}: the other remedies are not tried")
            return self._too_late
        step_s, remedy, kept = median_s(self._standing.result.steps_s), REMEDIES[offer.name], self._kept_now
        if self._computes_s is None or not step_s:
            return ""
        share = self._computes_s / step_s
        only_computing = remedy.shortens_computing or kept & LEAVES_COMPUTING.get(offer.name, set())
        if only_computing and share < _COMPUTES and not self._has_spared_launches:
            return f"the device computes for only {share:.0%} of a step and waits for the rest"
        shortened = any(REMEDIES[name].shortens_computing for name in kept)
        if remedy.spares_launches and not shortened and share > _BUSY:
            return f"the device computes for {min(share, 1.0):.0%} of a step, so there is little overhead to remove"
        return ""

    @property
    def _has_spared_launches(self) -> bool:
        """Was a remedy with fewer launches timed? What it left of a step is computing, whatever a few observed steps showed."""
        found = (self._record.latest(one.name, one.value) for one in self._offers if REMEDIES[one.name].spares_launches)
        return any(one is not None and (one.entry.verdict == KEPT or _gained_nothing(one)) for one in found)

    def _hidden_by_launches(self, offer: Offer) -> Offer | None:
        """A remedy with fewer launches to try together with this one: if launching takes as long as computing, faster computing
        alone does not shorten the step."""
        found = self._record.latest(offer.name, offer.value)
        promises = REMEDIES[offer.name].shortens_computing and (offer.predicted or 1.0) > _TELLS[0]
        if found is None or not promises or not _gained_nothing(found) or (found.entry.measured or 0.0) < _TELLS[1]:
            return None
        for one in self._offers:
            if REMEDIES[one.name].spares_launches and one.name not in self._kept_now:
                tried = self._record.latest(one.name, one.value)
                alone = tried is None and not self._why_not(one)  # it will be tried alone later
                in_vain = tried is None or tried.entry.verdict == UNTRIED or _gained_nothing(tried)
                return one if not alone and in_vain else None
        return None

    def _may_gain_now(self, offer: Offer) -> bool:
        """A remedy without speed-up, or untried, may help now that other remedies have shortened the steps."""
        step_s, found = median_s(self._standing.result.steps_s), self._record.latest(offer.name, offer.value)
        if found is None or not step_s:
            return False
        if found.entry.verdict == UNTRIED:
            return not self._why_not(offer)
        shorter = bool(offer.predicted) and (found.entry.against_s or 0.0) > _SHORTER * step_s
        return _gained_nothing(found) and (shorter or self._is_spared_since(found.entry))

    def _is_spared_since(self, entry: Entry) -> bool:
        """Was a remedy with fewer launches kept after this one was tried?"""
        spared = any(REMEDIES[name].spares_launches for name in self._record.kept_after(entry))
        return REMEDIES[entry.name].shortens_computing and spared

    # ---- what is told ----

    def note(self, option: RemedyOption, attempt: RemedyAttempt) -> None:
        offer, others, found = option.offer, option.others, attempt.judgement
        change = (offer.name, offer.value, offer.instead_of)
        entry = entry_of(*change, attempt.result, found, offer.predicted)
        if entry.against_s is None:
            entry = replace(entry, against_s=median_s(attempt.standing.result.steps_s))
        if not others or found.kept:  # another remedy may have caused a failure
            self._record.add_instead(entry, found.rejection)
        gain = "" if found.speed is None else f"{found.speed.ratio:.2f}x"
        for other in others if found.kept else ():
            together = f"{option.named}: {gain}"
            self._record.add_instead(Entry(other.name, other.value, other.instead_of, KEPT, together, other.predicted))
        self._say(f"{option.named}: {gain}{', ' if gain else ''}{entry.verdict}: {entry.why}")

    def note_together(self, together: Confirmation[Told], stays: bool) -> None:
        state, speed = self._standing.state, together.speed
        kind = kind_of(state)
        name = ALL_TOGETHER if kind == STEPS else f"{ALL_TOGETHER}: {kind}"
        entry = Entry(name, " + ".join(name for name, _ in state), "off", REJECTED, together.failure)
        if speed is not None and not stays:
            entry = replace(entry, why=f"no speed-up when timed together ({speed.low:.2f} to {speed.high:.2f})")
        elif speed is not None:
            entry = replace(
                entry,
                verdict=KEPT,
                why="timed with and without, " + ("in alternation" if self._tries.by_turns else "one after the other"),
                measured=speed.ratio,
                low=speed.low,
                high=speed.high,
                n=speed.n,
                step_s=median_s(together.result.steps_s),
                against_s=median_s(together.baseline.steps_s),
            )
            self._say(f"all together: {speed.ratio:.2f}x ({speed.low:.2f} to {speed.high:.2f})")
        self._record.add(entry)

    def together(
        self, standing: RemedyStanding, baseline: RemedyStanding, *, may_measure: bool
    ) -> Iterator[Confirmation[Told]]:
        return self._trials.together(standing) if may_measure else iter(())

    def interrupted(self) -> None:
        """Ctrl-C during trials ends the command."""
        raise KeyboardInterrupt


def _gained_nothing(found: Noted) -> bool:
    """Computes the same and was measured as not faster."""
    return found.rejection in COMPUTES_THE_SAME and bool(found.entry.measured)


def _is_safe(offer: Offer) -> bool:
    """Promises a gain, and computes the same: its failure is unlikely."""
    return REMEDIES[offer.name].computes_the_same and (offer.predicted or 1.0) > _PROMISES


def _first_of_all(offer: Offer) -> tuple[bool, bool, float]:
    remedy, gain = REMEDIES[offer.name], offer.predicted or 1.0
    gain = gain**0.5 if remedy.slow_to_try else gain
    return not remedy.steadies, not (remedy.feeds and gain > CLOSE[1]), -gain


def shown(kept: Sequence[tuple[str, Any]]) -> str:
    return " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in kept)
