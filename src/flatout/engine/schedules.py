"""Learning-rate schedules as pure functions of the share of the budget that is done; each with warm-up.

`warmup` is a number of steps (an int) or a share of the budget (a float below 1); `final` the last rate over the peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flatout.base.errors import UsageError
from flatout.base.option_types import LARGEST
from flatout.base.specs import Spec, pick

Shape = Callable[[float], float]


@dataclass(frozen=True)
class Schedule:
    """`at(step, done)`: the factor on the learning rate for 0-based `step` when the share `done` of the budget is behind it."""

    shape: Shape
    warmup: float
    written: object

    def at(self, step: int, done: float, total_steps: int | None) -> float:
        if self.warmup >= 1:  # counted in steps
            warm = self.warmup / total_steps if total_steps else 0.0
            if step < self.warmup:
                return (step + 1) / (self.warmup + 1)
        else:
            warm = self.warmup
            if done < warm:
                first = 1 / total_steps if total_steps else 0.01 * warm  # the very first step learns too
                return min(1.0, (done + first) / (warm + first))
        return self.shape(min(1.0, max(0.0, (done - warm) / (1 - warm))) if warm < 1 else 1.0)


def constant() -> Shape:
    return lambda p: 1.0


def linear(final: float = 0.0) -> Shape:
    return lambda p: 1 + (final - 1) * p


def cosine(final: float = 0.0) -> Shape:
    return lambda p: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * p))


def one_cycle(peak_at: float = 0.3, start: float = 0.04, final: float = 1e-4) -> Shape:
    """Up to the peak and down again, both along a cosine (Smith's super-convergence)."""
    if not 0 < peak_at < 1:
        raise UsageError(f"one_cycle: peak_at is a share of the budget, above 0 and below 1, got {peak_at}")

    def shape(p: float) -> float:
        low, t = (start, p / peak_at) if p < peak_at else (final, (1 - p) / (1 - peak_at))
        return low + (1 - low) * 0.5 * (1 - math.cos(math.pi * t))

    return shape


def warmup_stable_decay(decay: float = 0.2, final: float = 0.0) -> Shape:
    """Flat until the last `decay` share of the budget, then linear down."""
    if not 0 < decay <= 1:
        raise UsageError(f"warmup_stable_decay: decay is a share of the budget, above 0 and up to 1, got {decay}")
    return lambda p: 1.0 if p < 1 - decay else final + (1 - final) * (1 - p) / decay


SHAPES: dict[str, Callable[..., Shape]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "one_cycle": one_cycle,
    "warmup_stable_decay": warmup_stable_decay,
}
_WARMUP = {"constant": 0.0, "linear": 0.05, "cosine": 0.05, "one_cycle": 0.0, "warmup_stable_decay": 0.05}


def parse_schedule(written: object) -> Schedule:
    spec = Spec.parse(written)
    maker = pick(SHAPES, spec.name, "schedule")
    options = dict(spec.options)
    warmup = options.pop("warmup", _WARMUP[spec.name])
    if isinstance(warmup, bool) or not isinstance(warmup, int | float) or not 0 <= warmup <= LARGEST:
        raise UsageError(f"warmup is a number of steps (100) or a share of the budget (0.05), got {warmup!r}")
    return Schedule(Spec(spec.name, options, spec.value).fitted_to(maker).call(maker), float(warmup), spec.written())
