"""Proof by training: the reference and a candidate learn from the same batches, and the candidate's loss must not be worse."""

from __future__ import annotations

from typing import Any

from flatout.engine.settings import Settings
from flatout.measure.paired import check_losses
from flatout.plan.trials.reports import Losses, Tries

_STEPS = (20, 40)  # at least, at most
_REFERENCE_S = 25.0  # for those of the reference, about
_SEED, _REPEATS = 1, 3  # a model that draws numbers is repeated with others: they tell its noise


class SideBySide:
    """The reference is trained once, when it is first asked for."""

    def __init__(self, tries: Tries, reference: Settings, step_s: float, *, draws: bool) -> None:
        self._tries, self._reference = tries, reference
        self._steps = int(min(_STEPS[1], max(_STEPS[0], _REFERENCE_S / max(step_s, 1e-9))))
        self._repeats = _REPEATS if draws else 1
        self._arms: list[Losses] = []

    def verdict(self, settings: Settings) -> dict[str, Any]:
        """`passed` and `why`; where both could be trained, the test with its figures and the losses of all arms."""
        if not self._arms:
            seeds = range(_SEED, _SEED + self._repeats)
            self._arms = [self._tries.losses(self._reference.to_dict(), self._steps, seed) for seed in seeds]
        if failed := [arm for arm in self._arms if arm.failure]:
            return {"passed": False, "why": f"the reference could not be trained: {failed[0].failure}: {failed[0].why}"}
        found = self._tries.losses(settings.to_dict(), self._steps, _SEED)
        if found.failure:
            return {"passed": False, "why": f"could not be trained: {found.failure}: {found.why}"}
        verdict = check_losses([arm.losses for arm in self._arms], found.losses)
        return vars(verdict) | {"reference": [list(arm.losses) for arm in self._arms], "losses": list(found.losses)}
