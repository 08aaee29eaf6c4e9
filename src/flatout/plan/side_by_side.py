"""Proof by training: the reference and a candidate learn from the same batches, and the candidate's loss must not be worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

from flatout.engine.settings import Settings
from flatout.measure.paired import NOT_ENOUGH, check_losses
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

    def verdict(self, settings: Settings, step_s: float, most_s: float, say: Callable[[str], None]) -> dict[str, Any]:
        """`passed` and `why`; where both could be trained, the test with its figures and the losses of all arms.

        Where noise leaves it open, both train from the start again, on the batches that follow, as often as it takes to tell
        and `most_s` allow; those that are asked about later do, too. To go on instead would tell less: what rounding does to
        a step grows from step to step. Whether to go on is for the noise to say, not for the difference that was seen, or
        chance would get one more look with each.
        """
        found = self._compared(settings, self._parts)
        while parts := self._parts_to_tell(found, step_s, most_s):
            say(
                f"  its losses can't be told from noise: {parts - self._parts} times {self._steps} steps more, on other batches"
            )
            longer = self._compared(settings, parts)
            if "figures" not in longer:  # not all of them could be trained: what was found stands
                break
            most_s -= self._takes_s(parts, step_s)
            found, self._parts = longer, parts
        return found

    def _parts_to_tell(self, found: Mapping[str, Any], step_s: float, most_s: float) -> int:
        """0 where more would not tell, or would take too long."""
        if found["passed"] or not found["why"].startswith(NOT_ENOUGH) or not found.get("figures"):
            return 0
        parts = ceil(_AMPLE * found["figures"]["steps_needed"] / self._steps)
        return parts if self._parts < parts <= _MOST_PARTS and self._takes_s(parts, step_s) <= most_s else 0

    def _takes_s(self, parts: int, step_s: float) -> float:
        return (parts - self._parts) * self._steps * (self._repeats * self._step_s + step_s)

    def _compared(self, settings: Settings, parts: int) -> dict[str, Any]:
        found = self._trained(settings, parts, _SEED)
        arms = [self._trained(self._reference, parts, seed) for seed in range(_SEED, _SEED + self._repeats)]
        if failed := [arm for arm in arms if arm.failure]:
            return {"passed": False, "why": f"the reference could not be trained: {failed[0].failure}: {failed[0].why}"}
        if found.failure:
            return {"passed": False, "why": f"could not be trained: {found.failure}: {found.why}"}
        # part by part, as they are independent of each other; and step by step, where all of them may drift away at their ends
        looks = [check_losses([order(arm.losses) for arm in arms], order(found.losses)) for order in (tuple, self._by_step)]
        verdict = next((look for look in looks if not look.passed), looks[0])
        return vars(verdict) | {"reference": [list(arm.losses) for arm in arms], "losses": list(found.losses)}

    def _by_step(self, losses: Sequence[float]) -> tuple[float, ...]:
        """The first steps of all parts, then their second ones, and so on."""
        return tuple(loss for step in range(self._steps) for loss in losses[step :: self._steps])

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
