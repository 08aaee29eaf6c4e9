"""Proof by training: the reference and a candidate learn from the same batches, and the candidate's loss must not be worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from flatout.engine.settings import Settings
from flatout.measure.paired import NOT_ENOUGH, check_losses
from flatout.plan.trials.reports import Losses, Tries

_STEPS = (20, 40)  # at least, at most
_REFERENCE_S = 25.0  # for those of the reference, about
_SEED, _REPEATS = 1, 3  # a model that draws numbers is repeated with others: they tell its noise
_MOST_STEPS, _AMPLE = 600, 1.5  # where noise asks for more: so many at most, and more than it asks for, which is an estimate


class SideBySide:
    """The reference is trained once for each number of steps, when it is first asked for."""

    def __init__(self, tries: Tries, reference: Settings, step_s: float, *, draws: bool) -> None:
        self._tries, self._reference, self._step_s = tries, reference, step_s
        self._steps = int(min(_STEPS[1], max(_STEPS[0], _REFERENCE_S / max(step_s, 1e-9))))
        self._repeats = _REPEATS if draws else 1
        self._arms: dict[int, list[Losses]] = {}

    def verdict(self, settings: Settings, step_s: float, most_s: float, say: Callable[[str], None]) -> dict[str, Any]:
        """`passed` and `why`; where both could be trained, the test with its figures and the losses of all arms.

        Where noise leaves it open, once more with as many steps as that takes, if `most_s` are enough for them; those that
        are asked about later get as many.
        """
        found = self._compared(settings, self._steps)
        steps = self._steps_to_tell(found, step_s, most_s)
        if not steps:
            return found
        say(f"  {self._steps} steps side by side are too few to tell its losses from noise: {steps} are made")
        longer = self._compared(settings, steps)
        if "figures" not in longer:  # it could not be trained that long: what was found stands
            return found
        self._steps = steps
        return longer

    def _steps_to_tell(self, found: Mapping[str, Any], step_s: float, most_s: float) -> int:
        """0 where more steps would not tell, or would take too long."""
        if found["passed"] or not found["why"].startswith(NOT_ENOUGH) or not found.get("figures"):
            return 0
        steps = ceil(_AMPLE * found["figures"]["steps_needed"])
        takes_s = steps * (self._repeats * self._step_s + step_s)
        return steps if self._steps < steps <= _MOST_STEPS and takes_s <= most_s else 0

    def _compared(self, settings: Settings, steps: int) -> dict[str, Any]:
        if steps not in self._arms:
            seeds = range(_SEED, _SEED + self._repeats)
            self._arms[steps] = [self._tries.losses(self._reference.to_dict(), steps, seed) for seed in seeds]
        arms = self._arms[steps]
        if failed := [arm for arm in arms if arm.failure]:
            return {"passed": False, "why": f"the reference could not be trained: {failed[0].failure}: {failed[0].why}"}
        found = self._tries.losses(settings.to_dict(), steps, _SEED)
        if found.failure:
            return {"passed": False, "why": f"could not be trained: {found.failure}: {found.why}"}
        verdict = check_losses([arm.losses for arm in arms], found.losses)
        return vars(verdict) | {"reference": [list(arm.losses) for arm in arms], "losses": list(found.losses)}
