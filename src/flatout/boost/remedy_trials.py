"""Tries and proves a remedy against the script with the remedies kept so far, as often as the noise requires."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flatout.base.units import show_seconds
from flatout.boost.comparing import are_too_few, compared, of_the_whole, pooled
from flatout.boost.proving import Proof, ScriptTrials, steps_needed
from flatout.boost.remedies.all import REMEDIES
from flatout.boost.remedies.remedy import EVALUATIONS, STEPS, Offer
from flatout.boost.settling import PLAIN
from flatout.boost.trial import Told
from flatout.boost.trying import WORTH
from flatout.measure.judging import Judgement, Rejection, judge, speed_up
from flatout.measure.loss_proof import LossVerdict, is_open, with_more_steps
from flatout.measure.search import Attempt, Confirmation, NoBaseline
from flatout.measure.standing import Standing, median_s
from flatout.measure.stats import Comparison, summarize
from flatout.measure.time_limit import TimeLimit

_FRESH_S, _CHEAP_S = 20.0, 15.0  # a measurement is valid this long; a trial this short may be repeated
_SHARE = 1 / 12  # of the time for all trials: no trial of a remedy is repeated after that
_LEAST_TRIALS = 3  # two of the unmodified script, and one of a remedy
_ONCE_S = 1.0  # a start that takes this much longer is reported
CLOSE, _ROUNDS = (0.95, 1.15), 3  # speed-ups within noise between processes; most repetitions
_AMPLE = 1.5  # times the estimated number of steps to compare losses

Remedies = tuple[tuple[str, Any], ...]
RemedyStanding = Standing[Remedies, Told]
RemedyAttempt = Attempt[Remedies, Told]


@dataclass(frozen=True)
class RemedyOption:
    """`others`: remedies to try together with this one."""

    offer: Offer
    state: Remedies
    others: tuple[Offer, ...] = ()

    @property
    def named(self) -> str:
        return " with ".join(one.name.replace("_", " ") for one in (self.offer, *self.others))


class RemedyTrials:
    def __init__(
        self,
        tries: ScriptTrials,
        proof: Proof,
        time_limit: TimeLimit,
        say: Callable[[str], None],
        *,
        lasts_s: float,
        trial_s: float,
        precisions: Sequence[str] = (),
    ) -> None:
        """A remedy's extra start time must be repaid within `lasts_s`. `trial_s`: expected time of a trial's steps.
        `precisions`: of the remedies that may be tried."""
        self._tries, self._proof, self._time_limit, self._say = tries, proof, time_limit, say
        self._lasts_s, self._trial_s, self._precisions = lasts_s, trial_s, tuple(precisions)
        self.highest_loss, self.loss_steps = float("inf"), 0  # of the unmodified script

    # ---- how to run it ----

    def baseline(self) -> RemedyStanding | NoBaseline:
        if _LEAST_TRIALS * self._trial_s > self._time_limit.limit_s:
            return NoBaseline(
                f"a trial of {self._tries.steps} steps takes about {show_seconds(self._trial_s)}, and at least {_LEAST_TRIALS} "
                f"trials are needed, 2 of the unmodified script: more than --within {show_seconds(self._time_limit.limit_s)}"
            )
        self._say("running the unmodified script twice to measure its noise")
        if why := self._proof.begin(self._precisions, lambda: self._time_limit.is_over):
            step_s = median_s(self._proof.reference.steps_s)
            return NoBaseline(why, step_s, step_s)
        reference, again = self._proof.reference, self._proof.again
        if (steps := steps_needed(reference, again)) > self._tries.steps and not self._proof.in_parts(PLAIN):
            self._say("its losses differ between the two runs")
            if self._proof.twice_exactly() is None:
                self._say(f"{self._tries.steps} steps are too few to compare its losses; running {steps}")
                self._tries.steps = steps
                self._proof.reference, self._proof.again = reference, again = self._proof.twice()
                if failed := next((one for one in (reference, again) if one.failure), None):
                    return NoBaseline(f"the unmodified script failed in a trial: {failed.why}")
        self.highest_loss, self.loss_steps = max(*reference.losses, *again.losses), len(reference.losses)
        return Standing((), reference)

    def attempt(self, option: RemedyOption, standing: RemedyStanding) -> RemedyAttempt:
        slow_s = summarize(self._proof.reference.steps_s).median
        is_old, by_turns = time.monotonic() - standing.at_s > _FRESH_S, self._tries.by_turns
        if is_old and not by_turns and standing.result.took_s < _CHEAP_S:
            standing = self._measured_again(standing)
        told = self._tries.attempt(option.state, against=standing.state, slow_s=slow_s)
        if by_turns and not self._tries.by_turns:
            self._say("two trials of this script can't run at the same time; from here on they run one after the other")
            standing = self._measured_again(standing)
        found = self._judged(told, standing, option)
        if found.kept and self._tries.by_turns and found.speed is not None and found.speed.ratio < CLOSE[1]:
            return self._second_pair(Attempt(found, told, standing), option)
        rounds, ends_s = 0, time.monotonic() + _SHARE * self._time_limit.limit_s
        while time.monotonic() < ends_s and told.took_s < _CHEAP_S and rounds < _ROUNDS and self._is_open(found, rounds):
            standing, told = self._once_more(standing, option.state, told)
            found = self._judged(told, standing, option)
            rounds += 1
        return Attempt(found, told, standing)

    def _judged(self, told: Told, standing: RemedyStanding, option: RemedyOption) -> Judgement:
        if told.differs:
            assert told.check is not None
            return Judgement(Rejection.DIFFERENT, f"not the same: {told.check['why']}")
        kind = REMEDIES[option.offer.name].measures
        times = compared(standing.result, told, kind)
        if not told.failure and are_too_few(times):
            timed = "turns" if told.against_s and kind == STEPS else kind
            return Judgement(Rejection.TOO_FEW, f"too few {timed} in the trial to measure a speed-up: {len(times.now_s)}")
        found = judge(told, times, margin=WORTH)
        if found.rejection in (Rejection.SLOWER, Rejection.NO_GAIN) and found.speed is not None:
            how = "slower" if found.speed.high < 1 else "no speed-up beyond the noise"
            return replace(found, why=f"{how} ({found.speed.low:.2f} to {found.speed.high:.2f})")
        if not found.kept:
            return found
        if (whole := of_the_whole(standing.result, told, kind)) < 1:
            why = f"most {kind} are faster, but a few are so slow that the total is not: {whole:.2f}x"
            return replace(found, rejection=Rejection.SLOWER, why=why)
        return self._weighed(found, told, standing)

    def _weighed(self, found: Judgement, told: Told, standing: RemedyStanding) -> Judgement:
        """Rejects a remedy whose extra start time is not repaid by faster steps."""
        was, step_s = standing.result, median_s(told.steps_s) or 0.0
        once_s = (told.first_s or 0.0) - (told.against_first_s or was.first_s or 0.0)
        saved_s = (median_s(told.against_s) or median_s(was.steps_s) or 0.0) - step_s
        if once_s < _ONCE_S or saved_s <= 0:
            return found
        steps = once_s / saved_s
        pays = f"adds {show_seconds(once_s)} at start, repaid after {steps:,.0f} steps"
        if steps * step_s > self._lasts_s:
            lasts = f"longer than the expected run (--lasts {show_seconds(self._lasts_s)})"
            return replace(found, rejection=Rejection.NOT_REPAID, why=f"{pays} or {show_seconds(steps * step_s)}, {lasts}")
        return replace(found, why=pays)

    def _measured_again(self, standing: RemedyStanding) -> RemedyStanding:
        """Measures the baseline again, because the speed of a shared machine changes over time."""
        now = self._tries.attempt(standing.state)
        if now.failure:
            return standing
        return Standing(standing.state, replace(standing.result, steps_s=now.steps_s, evaluations_s=now.evaluations_s))

    def _second_pair(self, first: RemedyAttempt, option: RemedyOption) -> RemedyAttempt:
        """Two processes of one script differ by a few percent, so a small speed-up must be measured twice."""
        again = self._tries.attempt(option.state, against=first.standing.state)
        second, before = self._judged(again, first.standing, option), first.judgement.speed
        assert before is not None
        if not second.kept or second.speed is None:
            why = f"{before.ratio:.2f}x, but a second pair of processes did not confirm it: {second.why}"
            return replace(first, judgement=replace(second, why=why, speed=second.speed or before))
        low, high = min(before.low, second.speed.low), max(before.high, second.speed.high)
        n, ratio = before.n + second.speed.n, (before.ratio * second.speed.ratio) ** 0.5
        judgement = replace(second, speed=Comparison(ratio, low, high, True, n))
        return Attempt(judgement, pooled(first.result, again), first.standing)

    def _is_open(self, found: Judgement, rounds: int) -> bool:
        """Is it still undecided whether the remedy is faster? A ratio near 1 is always measured twice. Trials in alternation
        run until they are decided."""
        if found.speed is None or found.rejection is Rejection.DIFFERENT or self._tries.by_turns:
            return False
        close = CLOSE[0] < found.speed.ratio < CLOSE[1]
        return found.speed.low <= 1 + WORTH < found.speed.high or (close and not rounds)

    def _once_more(self, standing: RemedyStanding, remedies: Remedies, told: Told) -> tuple[RemedyStanding, Told]:
        """One more trial with and one without the remedy, so that differences between processes average out."""
        again, without = self._tries.attempt(remedies), self._tries.attempt(standing.state)
        if not again.failure and (again.check is None or not again.check["passed"]):
            return standing, replace(told, check=again.check)
        if without.failure or again.failure:
            return standing, again if again.failure else told
        return Standing(standing.state, pooled(standing.result, without)), pooled(told, again)

    def together(self, standing: RemedyStanding) -> Iterator[Confirmation[Told]]:
        """Times all kept remedies together against the unmodified script."""
        self._say("timing all kept remedies together against the unmodified script")
        reference = plain = self._proof.reference
        whole, kind = standing.result, kind_of(standing.state)
        for rounds in range(_ROUNDS):
            boosted = self._tries.attempt(standing.state, against=(), losses=False)
            again = boosted if boosted.against_s else self._tries.attempt(())
            if why := again.why or boosted.why if again.failure or boosted.failure else _why_not_the_same(boosted):
                yield Confirmation(whole, reference, failure=f"failed when all kept remedies were timed together: {why}")
                return
            if boosted.against_s:  # only times measured in alternation count
                whole = pooled(whole, boosted) if rounds else boosted
                plain = replace(plain, steps_s=whole.against_s, evaluations_s=whole.against_evaluations_s)
            else:
                plain, whole = pooled(plain, again), pooled(whole, boosted)
            times = compared(plain, whole, kind)
            if are_too_few(times):
                yield Confirmation(whole, reference, failure=f"too few {kind} to time all kept remedies together")
                return
            yield Confirmation(whole, plain, speed_up(times, WORTH))
            if not self._tries.by_turns and whole.took_s >= _CHEAP_S:
                return

    # ---- how to prove it ----

    def prove(self, option: RemedyOption, attempt: RemedyAttempt, proven: RemedyStanding) -> RemedyAttempt:
        found = self._proof.losses(attempt.result, option.state)
        if is_open(found):
            attempt = self._with_more_steps(option, attempt)
            if not attempt.judgement.kept:
                return attempt
            found = self._proof.losses(attempt.result, option.state)
        if not found["passed"]:
            return attempt.rejected(Rejection.UNPROVEN, f"not proven to train the same: {found['why']}")
        why = "; ".join(part for part in (found["why"], attempt.judgement.why) if part)
        return replace(attempt, judgement=replace(attempt.judgement, why=why), proof=found)

    def _with_more_steps(self, option: RemedyOption, attempt: RemedyAttempt) -> RemedyAttempt:
        """Runs a longer trial if the remedy is faster and only the comparison of losses is undecided."""

        def fits(steps: int) -> bool:
            return steps <= self._proof.most_steps and not self._time_limit.is_over

        def longer(steps: int) -> LossVerdict | None:
            nonlocal attempt
            speed = attempt.judgement.speed
            gain = "" if speed is None else f"{speed.ratio:.2f}x; "
            self._say(f"{option.offer.name.replace('_', ' ')}: {gain}comparing its losses needs {steps} steps")
            self._tries.steps = steps
            first, second = self._proof.twice()
            if first.failure or second.failure:
                return None
            self._proof.reference, self._proof.again = first, second
            attempt = self.attempt(option, attempt.standing)
            return self._proof.plain_losses(attempt.result) if attempt.judgement.kept else None

        found = self._proof.plain_losses(attempt.result)
        with_more_steps(found, self._tries.steps, longer, ample=_AMPLE, fits=fits)
        return attempt


def kind_of(remedies: Remedies) -> str:
    """What the remedies speed up: steps, or evaluations only."""
    return STEPS if STEPS in {REMEDIES[name].measures for name, _ in remedies} else EVALUATIONS


def _why_not_the_same(told: Told) -> str:
    if told.check is not None and told.check["passed"]:
        return ""
    return str((told.check or {}).get("why", "")) or "its first step could not be compared"
