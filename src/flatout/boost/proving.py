"""Proof by losses: compares a trial's losses with those of the unmodified script, which runs twice to measure its noise.

If the noise is too large to decide, both run without dropout and with deterministic kernels, which reduces it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flatout.boost.trial import Told
from flatout.measure.loss_proof import LossVerdict, compare_losses, is_open
from flatout.measure.stats import summarize

_PROOF_S, _MOST_STEPS = 20.0, 3000  # limits of a trial that compares losses


class ScriptTrials(Protocol):
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
    ) -> Told: ...


class Proof:
    def __init__(self, tries: ScriptTrials, say: Callable[[str], None]) -> None:
        self._tries, self._say = tries, say
        self.reference = self.again = Told()  # of the unmodified script
        self._exact: tuple[Told, Told] | None = None  # the same, without dropout and deterministic, if the losses are noisy
        self._tried_exactly = False
        self._exactly: dict[tuple[tuple[str, Any], ...], Told] = {}

    @property
    def most_steps(self) -> float:
        return _most_steps(self.reference)

    def twice(self) -> tuple[Told, Told]:
        reference = self._tries.attempt((), keep=True)
        return reference, reference if reference.failure else self._tries.attempt(())

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

    def losses(self, told: Told, remedies: Sequence[tuple[str, Any]]) -> LossVerdict:
        found = self.plain_losses(told)
        if not is_open(found) or (exact := self.twice_exactly()) is None:
            return found
        key = tuple(remedies)
        exactly = self._exactly[key] = self._exactly.get(key) or self._tries.attempt(remedies, exact=True)
        if exactly.failure:
            return found
        found = _paired(*exact, exactly)
        return {**found, "why": f"{found['why']} (without dropout, with deterministic kernels)"}

    def of_patch(self, remedies: Sequence[tuple[str, Any]], patched: Sequence[tuple[str, str]]) -> str:
        """Why the patched script does not train as proven, or ""."""
        told = self._tries.attempt(remedies, patched=patched)
        if told.failure:
            return told.why or told.failure
        if told.check is None or not told.check["passed"]:
            return str((told.check or {}).get("why", "its first step could not be compared"))
        found = self.plain_losses(told)
        if is_open(found) and (exact := self.twice_exactly()) is not None:
            told = self._tries.attempt(remedies, patched=patched, exact=True)
            found = _paired(*exact, told) if not told.failure else {"passed": False, "why": told.why}
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
