"""What a search asks for, and what it is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Trial:
    number: int
    point: Mapping[str, Any]


@dataclass(frozen=True)
class Rung:
    """Train each of the trials, from where it stands, to step `to`; then report."""

    trials: tuple[Trial, ...]
    to: int


@dataclass(frozen=True)
class RungAnswer:
    """`scores`: by the trial's number; None: it failed. `spent`: the share of the study's budget used so far, 0 to 1. `once`:
    the part of it that did not go into rungs, such as the start: more rungs cost nothing of that kind."""

    scores: Mapping[int, float | None]
    spent: float
    once: float = 0.0


@dataclass
class TrialState:
    """How far a trial came. `scores`: by the step; higher is better here, whatever the user's metric means."""

    trial: Trial
    units: tuple[float, ...]
    scores: dict[int, float] = field(default_factory=dict)
    failed: bool = False

    @property
    def at(self) -> int:
        return next(reversed(self.scores), 0)  # steps only grow

    @property
    def score(self) -> float:
        """At the last step it was trained to."""
        return self.scores[self.at] if self.scores else -math.inf
