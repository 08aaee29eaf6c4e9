"""Proof by training: the baseline and a candidate train on the same batches, and the candidate's loss must not be worse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flatout.engine.settings import Settings
from flatout.measure.loss_proof import LossVerdict, compare_losses, with_more_steps
from flatout.plan.trials.recording import shown
from flatout.plan.trials.reports import Losses, Tries

_STEPS = (20, 40)  # at least, at most
_REFERENCE_S = 25.0  # approximate time for the baseline
_SEED, _REPEATS = 1, 3  # a model with random numbers is repeated with other seeds, to measure its noise
_MOST_PARTS, _AMPLE = 12, 1.25  # if noise requires more: at most this many parts, and this factor on the estimated number


class SideBySide:
    """Remembers trained losses, so that the baseline is trained once."""

    def __init__(self, tries: Tries, reference: Settings, step_s: float, *, draws: bool) -> None:
        self._tries, self._reference, self._step_s = tries, reference, step_s
        self._steps = int(min(_STEPS[1], max(_STEPS[0], _REFERENCE_S / max(step_s, 1e-9))))
        self._repeats = _REPEATS if draws else 1
        self._parts = 1
        self._known: dict[tuple[str, int, int], Losses] = {}

    def verdict(self, settings: Settings, step_s: float, most_s: float, say: Callable[[str], None]) -> LossVerdict:
        """`passed` and `why`; if both could be trained, also the test, its figures and the losses of all runs.

        If noise leaves the result open, both train again from the start on the following batches, as often as needed and as
        `most_s` allows; later candidates use as many. Training on without a restart would show less, because rounding
        differences grow from step to step.
        """

        def takes_s(steps: int) -> float:
            return (steps - self._parts * self._steps) * (self._repeats * self._step_s + step_s)

        def fits(steps: int) -> bool:
            return steps <= _MOST_PARTS * self._steps and takes_s(steps) <= most_s

        def longer(steps: int) -> LossVerdict:
            nonlocal most_s
            parts = steps // self._steps
            say(f"  {self._steps} steps are too few to tell (noise): running {parts - self._parts} times {self._steps} more")
            found = self._compared(settings, parts)
            if "figures" in found:  # all runs succeeded
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
            return {"passed": False, "why": f"the baseline could not be trained: {failed[0].failure}: {failed[0].why}"}
        if found.failure:
            return {"passed": False, "why": f"training failed: {found.failure}: {found.why}"}
        verdict = compare_losses([arm.losses for arm in arms], found.losses, part_steps=self._steps)
        return verdict | {"reference": [list(arm.losses) for arm in arms], "losses": list(found.losses)}

    def _trained(self, settings: Settings, parts: int, seed: int) -> Losses:
        """All parts one after another, or the first that failed."""
        joined: list[float] = []
        for part in range(parts):
            key = (shown(settings.to_dict()), part, seed)
            if key not in self._known:
                self._known[key] = self._tries.losses(settings.to_dict(), self._steps, seed, part * self._steps)
            if self._known[key].failure:
                return self._known[key]
            joined += self._known[key].losses
        return Losses(settings.to_dict(), tuple(joined))
