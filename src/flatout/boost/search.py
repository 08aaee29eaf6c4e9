"""One remedy at a time on top of those that were kept: tried, proven against the plain script, kept if it is faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flatout.base.units import show_seconds
from flatout.boost.comparing import compared, median_beside_s, median_step_s, of_the_whole, pooled, times_of
from flatout.boost.proving import Proof, Tries, steps_needed
from flatout.boost.remedies.all import INSTEAD, LEAVES_COMPUTING, REMEDIES
from flatout.boost.remedies.remedy import EVALUATIONS, STEPS, Offer
from flatout.boost.trial import Told
from flatout.boost.trying import WORTH
from flatout.measure.paired import NOT_ENOUGH
from flatout.measure.receipt import ALL_TOGETHER, KEPT, REJECTED, UNTRIED, Entry, Receipt
from flatout.measure.stats import Comparison, summarize

_FRESH_S, _CHEAP_S = 20.0, 15.0  # for so long a measurement speaks of the machine as it is; a trial that may be done again
_LEAST_TRIALS = 3  # two of the script as it is, and one
_NOT_THE_SAME = "not the same"
_COMPUTES = 0.3  # of a step: below that, the host or the data is what it waits for
_BUSY = 0.85  # of a step: above that, there is little else to spare
_TELLS = (1.15, 0.85)  # predicted for what shortens computing, and measured: its gain may be hidden by a host that is no faster
_SHORTER = 1.25  # by so much steps have to be, for a remedy that gained nothing to be tried again
_ONCE_S = 1.0  # a start that takes this much longer is told
_CLOSE, _ROUNDS = (0.95, 1.15), 3  # two processes of one script may differ by so much; how often they may be tried again


@dataclass
class Standing:
    remedies: list[tuple[str, Any]]
    told: Told
    at_s: float = field(default_factory=time.monotonic)  # when its steps were measured


class Search:
    def __init__(
        self,
        tries: Tries,
        offers: Sequence[Offer],
        say: Callable[[str], None],
        computes_s: float | None = None,
        within_s: float = float("inf"),
        lasts_s: float = float("inf"),
        trial_s: float = 0.0,
    ) -> None:
        """`computes_s`: how long the device computes in a step of the plain script. After `within_s` nothing more is tried.
        What a remedy costs before the first step has to be brought in within `lasts_s`. `trial_s`: what the steps of a trial
        should take."""
        self._tries, self._say = tries, say
        self._computes_s, self._lasts_s, self._trial_s = computes_s, lasts_s, trial_s
        self._within_s, self._began_s = within_s, time.monotonic()
        self._offers = sorted(offers, key=_first_of_all)
        self._too_late = ""
        self.entries: list[Entry] = []
        self.kept: list[tuple[str, Any]] = []
        self._paired: Mapping[str, Any] | None = None  # of what was kept last
        self._losses: Mapping[str, Any] = {}
        self.highest_loss, self.loss_steps = float("inf"), 0  # of the plain script
        self.proof = Proof(tries, say)
        self._together: set[str] = set()  # what was tried beside something else

    def run(self, machine: str, versions: Mapping[str, str], at: str) -> Receipt:
        began_s = time.monotonic()

        def receipt(stopped: str, reference: Told | None = None, best: Told | None = None) -> Receipt:
            return Receipt(
                reference={},
                settings=dict(self.kept),
                entries=tuple(self.entries),
                reference_step_s=median_step_s(reference),
                step_s=median_step_s(best),
                paired=self._paired,
                stopped=stopped,
                took_s=time.monotonic() - began_s,
                machine=machine,
                versions=versions,
                at=at,
            )

        if _LEAST_TRIALS * self._trial_s > self._within_s:
            return receipt(
                f"{self._tries.steps} steps take about {show_seconds(self._trial_s)}, and it takes {_LEAST_TRIALS} times as "
                f"many to tell anything, two of them as it is: more than the {show_seconds(self._within_s)} of --within"
            )
        self._say("the script as it is, twice: the second time shows how far it differs from itself")
        reference, again = self.proof.twice()
        if not reference.failure and (steps := steps_needed(reference, again)) > self._tries.steps:
            self._say("its losses differ from one time to the next")
            if self.proof.twice_exactly() is None:
                self._say(f"{steps} steps instead of {self._tries.steps} can tell more")
                self._tries.steps = steps
                reference, again = self.proof.twice()
        if reference.failure:
            return receipt(f"the script could not be tried: {reference.why}")
        if again.failure or again.check is None or not again.check["passed"]:
            why = again.why if again.failure else (again.check or {}).get("why", "")
            return receipt(f"nothing can be proven: {why}", reference, reference)
        self.highest_loss, self.loss_steps = max(*reference.losses, *again.losses), len(reference.losses)
        self.proof.reference, self.proof.again = reference, again
        standing = Standing([], reference)
        for offer in self._offers:
            standing = self._tried(offer, standing)
            standing = self._tried_beside(offer, standing)
        for offer in self._offers:
            standing = self._tried_beside(offer, standing)
        for offer in self._offers:
            if self._may_gain_now(offer, standing):
                standing = self._tried(offer, standing)
        if standing.remedies:
            standing = self._confirmed(standing)
        self.kept = standing.remedies
        if not self.kept:
            self._paired = None
        stopped = self._too_late or "all that applies to the steps that were looked at was tried"
        return receipt(stopped, self.proof.reference, standing.told if self.kept else self.proof.reference)

    def _tried(self, offer: Offer, standing: Standing, beside: Offer | None = None) -> Standing:
        if any(name == offer.name or offer.name in INSTEAD.get(name, set()) for name, _ in standing.remedies):
            return standing
        if (why := self._why_not(offer, standing)) and beside is not None:
            return standing
        if why:
            self._note(Entry(offer.name, offer.value, offer.instead_of, UNTRIED, why, offer.predicted))
            return standing
        both = [offer] if beside is None else [beside, offer]
        remedies = [*standing.remedies, *((one.name, one.value) for one in both)]
        slow_s = summarize(self.proof.reference.steps_s).median
        is_old, by_turns = time.monotonic() - standing.at_s > _FRESH_S, self._tries.by_turns
        if is_old and not by_turns and standing.told.took_s < _CHEAP_S:
            standing = self._measured_again(standing)
        told = self._tries.attempt(remedies, against=standing.remedies, slow_s=slow_s)
        if by_turns and not self._tries.by_turns:
            self._say("two trials of this script can't run beside each other: from here on they run one after the other")
            standing = self._measured_again(standing)
        verdict, why, measured = self._judged(told, standing, remedies)
        if verdict == REJECTED and NOT_ENOUGH in why and (steps := self._more_steps(told, measured)):
            self._say(
                f"{offer.name.replace('_', ' ')}: {measured['ratio']:.2f}x, and {steps} steps are needed to tell its losses"
            )
            self._tries.steps = steps
            first, second = self.proof.twice()
            if not first.failure and not second.failure:
                self.proof.reference, self.proof.again = first, second
                told = self._tries.attempt(remedies, against=standing.remedies, slow_s=slow_s)
                verdict, why, measured = self._judged(told, standing, remedies)
        if verdict == KEPT and self._tries.by_turns and measured["ratio"] < _CLOSE[1]:
            told, verdict, why, measured = self._second_pair(told, standing, remedies, measured)
        rounds = 0
        while told.took_s < _CHEAP_S and rounds < _ROUNDS and self._is_open(measured, rounds):
            standing, told = self._once_more(standing, remedies, told)
            verdict, why, measured = self._judged(told, standing, remedies)
            rounds += 1
        entry = Entry(
            offer.name,
            offer.value,
            offer.instead_of,
            verdict,
            why,
            predicted=offer.predicted,
            measured=measured.get("ratio"),
            low=measured.get("low"),
            high=measured.get("high"),
            n=len(told.steps_s),
            step_s=median_step_s(told),
            against_s=median_beside_s(told) or median_step_s(standing.told),
            first_s=told.first_s,
            peak_bytes=told.peak_bytes,
            check=told.check,
            took_s=told.took_s,
        )
        if beside is None or verdict == KEPT:  # what fails together may be the other's fault
            self._note(entry)
        name = " with ".join(one.name.replace("_", " ") for one in reversed(both))
        if verdict == KEPT:
            self._paired = self._losses
            if beside is not None:
                together = f"{name}: {measured['ratio']:.2f}x"
                self._note(Entry(beside.name, beside.value, beside.instead_of, KEPT, together, beside.predicted))
        gain = f"{measured['ratio']:.2f}x, " if measured else ""
        self._say(f"{name}: {gain}{verdict}: {why}")
        return Standing(remedies, told) if verdict == KEPT else standing

    def _note(self, entry: Entry) -> None:
        """Where one was tried again, that counts."""
        self.entries = [*(one for one in self.entries if (one.name, one.value) != (entry.name, entry.value)), entry]

    def _why_not(self, offer: Offer, standing: Standing) -> str:
        """Empty where it is worth a trial."""
        if time.monotonic() - self._began_s > self._within_s:
            if not self._too_late:
                self._too_late = f"the {show_seconds(self._within_s)} for trials were over"
                self._say(f"{self._too_late}: what is left is not tried")
            return self._too_late
        step_s = median_step_s(standing.told)
        kept = {name for name, _ in standing.remedies}
        only_computing = REMEDIES[offer.name].shortens_computing or kept & LEAVES_COMPUTING.get(offer.name, set())
        if only_computing and self._computes_s is not None and step_s:
            share = self._computes_s / step_s
            if share < _COMPUTES:
                return f"the device computes for {share:.0%} of a step, and waits for the rest of it"
        shortened = any(REMEDIES[name].shortens_computing for name in kept)
        if REMEDIES[offer.name].spares_launches and not shortened and self._computes_s is not None and step_s:
            share = self._computes_s / step_s
            if share > _BUSY:
                return f"the device computes for {min(share, 1.0):.0%} of a step: there is little else to spare"
        return ""

    def _tried_beside(self, offer: Offer, standing: Standing) -> Standing:
        beside = self._hidden_by_launches(offer, standing)
        if beside is None or offer.name in self._together:
            return standing
        self._together.add(offer.name)
        return self._tried(offer, standing, beside)

    def _hidden_by_launches(self, offer: Offer, standing: Standing) -> Offer | None:
        """Half the computing is no gain where the host takes as long to ask for it: what spares it that is tried beside."""
        found = next((one for one in self.entries if (one.name, one.value) == (offer.name, offer.value)), None)
        promises = REMEDIES[offer.name].shortens_computing and (offer.predicted or 1.0) > _TELLS[0]
        if found is None or not promises or not _gained_nothing(found) or (found.measured or 0.0) < _TELLS[1]:
            return None
        kept = {name for name, _ in standing.remedies}
        known = {(one.name, one.value): one for one in self.entries}
        for one in self._offers:
            tried = known.get((one.name, one.value))
            if REMEDIES[one.name].spares_launches and one.name not in kept:
                alone = tried is None and not self._why_not(one, standing)  # its own turn is still to come
                return one if not alone and (tried is None or tried.verdict == UNTRIED or _gained_nothing(tried)) else None
        return None

    def _may_gain_now(self, offer: Offer, standing: Standing) -> bool:
        """What gained nothing, or was not tried, while steps waited for something else may gain some of what is left."""
        step_s = median_step_s(standing.told)
        for entry in self.entries:
            if (entry.name, entry.value) == (offer.name, offer.value) and step_s:
                if entry.verdict == UNTRIED:
                    return not self._why_not(offer, standing)
                shorter = bool(offer.predicted) and (entry.against_s or 0.0) > _SHORTER * step_s
                return _gained_nothing(entry) and (shorter or self._is_spared_since(entry))
        return False

    def _is_spared_since(self, entry: Entry) -> bool:
        """Was it tried while the host took as long to ask for the computing as that takes, and is that over?"""
        later = self.entries[self.entries.index(entry) + 1 :]
        spared = any(one.verdict == KEPT and REMEDIES[one.name].spares_launches for one in later)
        return REMEDIES[entry.name].shortens_computing and spared

    def _measured_again(self, standing: Standing) -> Standing:
        """As it is now: machines that others use, too, are fast at one time and slow at another."""
        now = self._tries.attempt(standing.remedies)
        if now.failure:
            return standing
        return Standing(standing.remedies, replace(standing.told, steps_s=now.steps_s, evaluations_s=now.evaluations_s))

    def _once_more(self, standing: Standing, remedies: list[tuple[str, Any]], told: Told) -> tuple[Standing, Told]:
        """With it and without it: what a process of its own makes of the same steps shows in both."""
        again, without = self._tries.attempt(remedies), self._tries.attempt(standing.remedies)
        if not again.failure and (again.check is None or not again.check["passed"]):
            return standing, replace(told, check=again.check)
        if without.failure or again.failure:
            return standing, again if again.failure else told
        return Standing(standing.remedies, pooled(standing.told, without)), pooled(told, again)

    def _second_pair(
        self, told: Told, standing: Standing, remedies: list[tuple[str, Any]], first: Mapping[str, float]
    ) -> tuple[Told, str, str, dict[str, float]]:
        """Two processes of one script differ by some per cent, whatever the minute: a small gain has to come twice."""
        again = self._tries.attempt(remedies, against=standing.remedies)
        verdict, why, second = self._judged(again, standing, remedies)
        if verdict != KEPT:
            return told, verdict, f"{first['ratio']:.2f}x, but not in a second pair of processes: {why}", dict(second or first)
        low, high = min(first["low"], second["low"]), max(first["high"], second["high"])
        measured = {"ratio": (first["ratio"] * second["ratio"]) ** 0.5, "low": low, "high": high}
        return pooled(told, again), verdict, why, measured

    def _is_open(self, measured: Mapping[str, float], rounds: int) -> bool:
        """May it be faster, and not be? What is close is so in any case until it was looked at twice. A trial by turns goes on
        until it is clear."""
        if not measured or self._tries.by_turns:
            return False
        close = _CLOSE[0] < measured["ratio"] < _CLOSE[1]
        return measured["low"] <= 1 + WORTH < measured["high"] or (close and not rounds)

    def _more_steps(self, told: Told, measured: Mapping[str, float]) -> int:
        """How many would do, where a trial is faster and only its losses could not be told; 0 where they take too long."""
        if told.failure or not told.check or not told.check["passed"] or measured.get("low", 0.0) < 1 + WORTH:
            return 0
        return self.proof.more_steps(told)

    def _judged(self, told: Told, standing: Standing, remedies: list[tuple[str, Any]]) -> tuple[str, str, dict[str, float]]:
        if told.failure:
            return REJECTED, f"{told.failure}: {told.why}", {}
        kind = REMEDIES[remedies[-1][0]].measures
        speed = compared(standing.told, told, kind)
        if speed is None:
            timed = "turns" if told.beside_s and kind == STEPS else kind
            return REJECTED, f"{len(times_of(told, kind))} {timed} in the trial are too few to tell", {}
        measured = {"ratio": speed.ratio, "low": speed.low, "high": speed.high}
        if told.check is None or not told.check["passed"]:
            return REJECTED, f"{_NOT_THE_SAME}: {(told.check or {}).get('why', 'nothing to hold it against')}", measured
        if speed.better is not True:
            how = "slower" if speed.high < 1 else "no gain beyond the noise"
            return REJECTED, f"{how} ({speed.low:.2f} to {speed.high:.2f})", measured
        if (whole := of_the_whole(standing.told, told, kind)) < 1:
            return REJECTED, f"most {kind} are faster, but a few are so slow that all of them are not: {whole:.2f}x", measured
        losses = self.proof.losses(told, remedies)
        if not losses["passed"]:
            return REJECTED, f"{_NOT_THE_SAME}: {losses['why']}", measured
        self._losses = losses
        once_s, saved_s = self._once_and_then(told, standing)
        if once_s < _ONCE_S or saved_s <= 0:
            return KEPT, str(losses["why"]), measured
        steps = once_s / saved_s
        pays = f"costs {show_seconds(once_s)} before the first step, which {steps:,.0f} steps bring in"
        if (brought_s := steps * (median_step_s(told) or 0.0)) > self._lasts_s:
            lasts = f"a run is taken to last {show_seconds(self._lasts_s)}"
            return REJECTED, f"{pays}: {show_seconds(brought_s)}, and {lasts}", measured
        return KEPT, f"{losses['why']}; {pays}", measured

    @staticmethod
    def _once_and_then(told: Told, standing: Standing) -> tuple[float, float]:
        """Seconds that it takes before the first step, and that it saves in each: the time of a step shows only these."""
        once_s = (told.first_s or 0.0) - (told.beside_first_s or standing.told.first_s or 0.0)
        return once_s, (median_beside_s(told) or median_step_s(standing.told) or 0.0) - (median_step_s(told) or 0.0)

    def _confirmed(self, standing: Standing) -> Standing:
        """Once more, the plain script and then all that was kept: nobody is left slower than where they started."""
        self._say("once more: the script as it is, and all that was kept")
        plain, whole, rounds = self.proof.reference, standing.told, 0
        speed: Comparison | None = None
        kinds = {REMEDIES[name].measures for name, _ in standing.remedies}
        kind = STEPS if STEPS in kinds else EVALUATIONS
        while speed is None or (
            speed.better is None and rounds < _ROUNDS and (self._tries.by_turns or whole.took_s < _CHEAP_S)
        ):
            boosted = self._tries.attempt(standing.remedies, against=(), losses=False)
            again = boosted if boosted.beside_s else self._tries.attempt(())
            if not boosted.failure and (boosted.check is None or not boosted.check["passed"]):
                boosted = replace(boosted, failure=_NOT_THE_SAME, why=str((boosted.check or {}).get("why", "")))
            if again.failure or boosted.failure:
                why = f"it failed when tried again: {again.why or boosted.why}"
                self.entries.append(_all_together(standing, REJECTED, why))
                return Standing([], self.proof.reference)
            if boosted.beside_s:  # only what was taken beside the plain script counts
                whole = pooled(whole, boosted) if rounds else boosted
                plain = replace(plain, steps_s=whole.beside_s, evaluations_s=whole.beside_evaluations_s)
            else:
                plain, whole = pooled(plain, again), pooled(whole, boosted)
            speed, rounds = compared(plain, whole, kind), rounds + 1
            if speed is None:
                self.entries.append(_all_together(standing, REJECTED, f"too few {kind} to tell when it was tried again"))
                return Standing([], self.proof.reference)
        self.proof.reference = plain
        together = _all_together(
            standing, KEPT, "both arms once more, " + ("by turns" if self._tries.by_turns else "one after the other")
        )
        if kind != STEPS:
            together = replace(together, name=f"{ALL_TOGETHER}: {kind}")
        if speed.better is not True:
            why = f"no gain when tried again ({speed.low:.2f} to {speed.high:.2f})"
            self.entries.append(replace(together, verdict=REJECTED, why=why))
            return Standing([], plain)
        n = len(times_of(whole, kind))
        found = replace(together, measured=speed.ratio, low=speed.low, high=speed.high, n=n)
        self.entries.append(replace(found, step_s=median_step_s(whole), against_s=median_step_s(plain)))
        self._say(f"all together: {speed.ratio:.2f}x ({speed.low:.2f} to {speed.high:.2f})")
        return Standing(standing.remedies, whole)


def _gained_nothing(entry: Entry) -> bool:
    """It computes the same, and was not faster."""
    return bool(entry.verdict == REJECTED and entry.measured and not entry.why.startswith(_NOT_THE_SAME))


def _first_of_all(offer: Offer) -> tuple[bool, bool, float]:
    remedy, gain = REMEDIES[offer.name], offer.predicted or 1.0
    return not remedy.steadies, not (remedy.feeds and gain > _CLOSE[1]), -gain


def _all_together(standing: Standing, verdict: str, why: str) -> Entry:
    names = " + ".join(name for name, _ in standing.remedies)
    return Entry(ALL_TOGETHER, names, "off", verdict, why)


def shown(kept: Sequence[tuple[str, Any]]) -> str:
    return " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in kept)
