"""Proof by losses: compares a trial's losses with those of the unmodified script, which runs twice to measure its noise.

Some scripts are chaotic: a change of the weights as small as rounding soon leads to other losses. There, the weights are put
back every few steps, so that each part of the losses begins from the same weights and a difference has little time to grow. If
noise hides the result for another reason, both run without dropout and with deterministic kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flatout.boost.settling import PLAIN, PlaceNoise, RepeatTrials, repeated, settle
from flatout.boost.trial import Told, precision_of
from flatout.measure.loss_proof import LossVerdict, compare_losses, is_open
from flatout.measure.stats import summarize

_PROOF_S, _MOST_STEPS = 20.0, 3000  # limits of a trial that compares losses
_PART_STEPS = 8
_SPREAD = 0.2  # of the margin: at 0.37 an equal candidate passes 80% of the time


class ScriptTrials(RepeatTrials, Protocol):
    steps: int
    by_turns: bool  # a trial alternates with its baseline (`against`) and returns both times

    def attempt(
        self,
        remedies: Sequence[tuple[str, Any]],
        *,
        against: Sequence[tuple[str, Any]] | None = None,
        keep: bool = False,
        slow_s: float | None = None,
        exact: bool = False,
        losses: bool = True,
        patched: Sequence[tuple[str, str]] = (),
        repeats: str = "",
        shaken: bool = False,
        part: int = 0,
    ) -> Told: ...


class Proof:
    def __init__(self, tries: ScriptTrials, say: Callable[[str], None]) -> None:
        self._tries, self._say = tries, say
        self.reference = self.again = Told()  # of the unmodified script
        self.place: PlaceNoise | None = None  # where steps are compared
        self._exact: tuple[Told, Told] | None = None  # the same, without dropout and deterministic, if the losses are noisy
        self._tried_exactly = False
        self._untimed: dict[tuple[Any, ...], Told] = {}
        self._parts: dict[str, list[Told]] = {}  # unmodified, with the weights put back every few steps; by precision
        self._rounding_matters: dict[str, bool] = {}

    @property
    def most_steps(self) -> float:
        return _most_steps(self.reference)

    def begin(self, precisions: Sequence[str], is_over: Callable[[], bool]) -> str:
        """Runs the unmodified script until it is known where remedies of these precisions can be compared with it. Why nothing
        can be proven, or ""."""
        self.reference = self._tries.attempt((), keep=True)
        repeats = {} if self.reference.failure else repeated(self._tries, (0,), precisions, whole=True)
        self.again = repeats.get(PLAIN, self.reference)
        if self.again.failure:
            return f"the unmodified script failed in a trial: {self.again.why}"
        self.place, why = settle(self._tries, repeats, self._say, is_over)
        if self.place is None:
            return f"no remedy can be proven: a second unmodified run differs from the first: {why}"
        self._tries.compare_at(self.place.at, self.place.noise())
        if self.place.was_chosen:
            self._say(f"comparing step {self.place.at + 1} of each trial with the unmodified script's")
            self.reference, self.again = self.twice()
        return ""

    def twice(self) -> tuple[Told, Told]:
        reference = self._tries.attempt((), keep=True)
        return reference, reference if reference.failure else self._tries.attempt((), repeats=PLAIN)

    def _differs_by_rounding(self, precision: str) -> bool:
        """Do the losses change when each weight is changed by no more than rounding to this precision?"""
        if precision not in self._rounding_matters:
            told = self._tries.attempt((), repeats=precision, shaken=True)
            found = compare_losses([self.reference.losses], told.losses)
            spread = found.get("figures", {}).get("standard_error", 0.0)
            matters = not found["passed"] or spread > _SPREAD * found["margin"]
            self._rounding_matters[precision] = not told.failure and matters
        return self._rounding_matters[precision]

    def in_parts(self, precision: str) -> list[Told]:
        """The unmodified script thrice, the third time with weights changed by rounding. Empty if it is not chaotic, or if its
        losses still differ too much."""
        if not self._differs_by_rounding(precision):
            return []
        if precision not in self._parts:
            self._say(f"its losses depend on rounding; putting the weights back every {_PART_STEPS} steps to compare them")
            first = self._tries.attempt((), part=_PART_STEPS)
            told = [first, *(self._tries.attempt((), repeats=precision, shaken=one, part=_PART_STEPS) for one in (False, True))]
            failed = any(one.failure for one in told)
            known = {} if failed else compare_losses([told[0].losses, told[2].losses], told[1].losses, _PART_STEPS)
            self._parts[precision] = [] if failed or is_open(known) else told
        return self._parts[precision]

    def twice_exactly(self) -> tuple[Told, Told] | None:
        """Without dropout and deterministic; None if the losses still differ too much."""
        if not self._tried_exactly:
            self._say("running it twice without dropout and with deterministic kernels, for less noise in its losses")
            self._tried_exactly = True
            first, second = (self._tries.attempt((), exact=True) for _ in range(2))
            if not first.failure and not second.failure and steps_needed(first, second) <= self._tries.steps:
                self._exact = first, second
        return self._exact

    def plain_losses(self, told: Told) -> LossVerdict:
        """Compares the losses of normal runs, with dropout and any kernels."""
        return _paired(self.reference, self.again, told)

    def losses(self, told: Told, remedies: Sequence[tuple[str, Any]], patched: Sequence[tuple[str, str]] = ()) -> LossVerdict:
        found = self.plain_losses(told)
        if found["passed"]:
            return found
        precision = precision_of(remedies)
        if known := self.in_parts(precision):
            in_parts = self._again(remedies, patched, part=_PART_STEPS)
            if not in_parts.failure:
                found = compare_losses([one.losses for one in known], in_parts.losses, _PART_STEPS)
                return {**found, "why": f"{found['why']} (in parts of {_PART_STEPS} steps from the same weights)"}
        if is_open(found) and (exact := self.twice_exactly()) is not None:
            exactly = self._again(remedies, patched, exact=True)
            if not exactly.failure:
                found = _paired(*exact, exactly)
                return {**found, "why": f"{found['why']} (without dropout, with deterministic kernels)"}
        return found

    def _again(self, remedies: Sequence[tuple[str, Any]], patched: Sequence[tuple[str, str]], **how: Any) -> Told:
        key = (tuple(remedies), tuple(patched), *how)
        if key not in self._untimed:
            self._untimed[key] = self._tries.attempt(remedies, patched=patched, **how)
        return self._untimed[key]

    def of_patch(self, remedies: Sequence[tuple[str, Any]], patched: Sequence[tuple[str, str]]) -> str:
        """Why the patched script does not train as proven, or ""."""
        told = self._tries.attempt(remedies, patched=patched)
        if told.failure:
            return told.why or told.failure
        if told.check is None or not told.check["passed"]:
            return str((told.check or {}).get("why", "its first step could not be compared"))
        found = self.losses(told, remedies, patched)
        return "" if found["passed"] else str(found["why"])


def steps_needed(reference: Told, again: Told) -> int:
    """The steps needed to show that the unmodified script is as good as itself, limited to some seconds."""
    if again.failure or not reference.steps_s:
        return 0
    figures = compare_losses([reference.losses], again.losses).get("figures", {})
    wanted = 2 * figures.get("steps_needed", 0.0)  # a remedy's rounding adds as much noise again
    return int(min(wanted, _most_steps(reference)))


def _most_steps(reference: Told) -> float:
    return min(_PROOF_S / summarize(reference.steps_s).median, _MOST_STEPS)


def _paired(reference: Told, again: Told, told: Told) -> LossVerdict:
    return compare_losses([reference.losses, again.losses], told.losses)
