"""Proof by training: the reference and a candidate learn from the same batches, and the candidate's loss must not be worse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flatout.engine.settings import Settings
from flatout.measure.loss_proof import LossVerdict, compare_losses, with_more_steps
from flatout.plan.trials.recording import shown
from flatout.plan.trials.reports import Losses, Tries

_STEPS = (20, 40)  # at least, at most
_REFERENCE_S = 25.0  # for those of the reference, about
_SEED, _REPEATS = 1, 3  # a model that draws numbers is repeated with others: they tell its noise
_MOST_PARTS, _AMPLE = 12, 1.25  # where noise asks for more: so many at most, and more than it asks for, which is an estimate


class SideBySide:
    """What was trained is known from then on, the reference above all."""

    def __init__(self, tries: Tries, reference: Settings, step_s: float, *, draws: bool) -> None:
        self._tries, self._reference, self._step_s = tries, reference, step_s
        self._steps = int(min(_STEPS[1], max(_STEPS[0], _REFERENCE_S / max(step_s, 1e-9))))
        self._repeats = _REPEATS if draws else 1
        self._parts = 1
        self._known: dict[tuple[str, int, int], Losses] = {}

    def verdict(self, settings: Settings, step_s: float, most_s: float, say: Callable[[str], None]) -> LossVerdict:
        """`passed` and `why`; where both could be trained, the test with its figures and the losses of all arms.

        Where noise leaves it open, both train from the start again, on the batches that follow, as often as it takes to tell
        and `most_s` allow; those that are asked about later do, too. To go on instead would tell less: what rounding does to
        a step grows from step to step.
        """

        def takes_s(steps: int) -> float:
            return (steps - self._parts * self._steps) * (self._repeats * self._step_s + step_s)

        def fits(steps: int) -> bool:
            return steps <= _MOST_PARTS * self._steps and takes_s(steps) <= most_s

        def longer(steps: int) -> LossVerdict:
            nonlocal most_s
            parts = steps // self._steps
            say(
                f"  its losses can't be told from noise: {parts - self._parts} times {self._steps} steps more, on other batches"
            )
            found = self._compared(settings, parts)
            if "figures" in found:  # all of them could be trained
                most_s -= takes_s(steps)
                self._parts = parts
            return found

        found = self._compared(settings, self._parts)
        already = self._parts * self._steps
        return with_more_steps(found, already, longer, ample=_AMPLE, fits=fits, in_parts_of=self._steps)

    def _compared(self, settings: Settings, parts: int) -> dict[str, Any]:
        found = self._trained(settings, parts, _SEED)
        arms = [self._trained(self._reference, parts, seed) for seed in range(_SEED, _SEED + self._repeats)]
        if failed := [arm for arm in arms if arm.failure]:
            return {"passed": False, "why": f"the reference could not be trained: {failed[0].failure}: {failed[0].why}"}
        if found.failure:
            return {"passed": False, "why": f"could not be trained: {found.failure}: {found.why}"}
        verdict = compare_losses([arm.losses for arm in arms], found.losses, part_steps=self._steps)
        return verdict | {"reference": [list(arm.losses) for arm in arms], "losses": list(found.losses)}

    def _trained(self, settings: Settings, parts: int, seed: int) -> Losses:
        """All parts one after the other, or the first that failed."""
        joined: list[float] = []
        for part in range(parts):
            key = (shown(settings.to_dict()), part, seed)
            if key not in self._known:
                self._known[key] = self._tries.losses(settings.to_dict(), self._steps, seed, part * self._steps)
            if self._known[key].failure:
                return self._known[key]
            joined += self._known[key].losses
        return Losses(settings.to_dict(), tuple(joined))
