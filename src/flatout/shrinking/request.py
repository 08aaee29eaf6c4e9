"""What a shrink is asked for, checked before anything is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout.base.errors import UsageError
from flatout.base.latency_goal import LatencyGoal
from flatout.base.units import parse_seconds
from flatout.shrinking.goal import ShrinkGoal, parse_goal

WITHIN = "10 min"
_OF_SEARCH = 0.5  # of the time, for trainings


@dataclass(frozen=True)
class ShrinkRequest:
    """`margin`: None for the usual one of the metric. `batches`: rows in a call, as they are served; none for one row and,
    with a latency goal of the service or of the shrink, as many as that permits. `data`: labelled rows to judge by instead of
    the run's own. `device`: that serves it."""

    goal: ShrinkGoal = field(default_factory=ShrinkGoal)
    margin: float | None = None
    batches: tuple[int, ...] = ()
    data: Any = None
    within_s: float = 600.0
    training_s: float = 300.0
    device: str = "cpu"
    slo: LatencyGoal | None = None

    @property
    def served_within_s(self) -> float | None:
        """What the service promises, if anything."""
        if self.slo is not None:
            return self.slo.seconds
        return self.goal.amount if self.goal.kind == "latency" else None

    def __post_init__(self) -> None:
        if self.margin is not None and not 0 < self.margin < 100:
            raise UsageError(
                f"--margin is above 0 and below 100, got {self.margin:g}: no number of rows proves that nothing is lost"
            )
        if self.slo is not None and self.batches:
            raise UsageError("--slo says which rows in a call are permitted, and --batch which are wanted: give one of them")
        if any(type(one) is not int or one < 1 for one in self.batches):
            raise UsageError(f"--batch takes numbers of rows, 1 or more, got {', '.join(map(str, self.batches))}")

    @classmethod
    def read(
        cls,
        goal: str | None = None,
        margin: float | None = None,
        batch: int | Sequence[int] | None = None,
        data: Any = None,
        within: str = WITHIN,
        training: str | None = None,
        device: str = "cpu",
        slo: str | None = None,
    ) -> ShrinkRequest:
        """As people write it: "p99 5 ms", 64 or (1, 64), "10 min", "off"."""
        within_s = parse_seconds(within)
        training_s = _OF_SEARCH * within_s if training is None else 0.0 if training == "off" else parse_seconds(training)
        sizes = () if batch is None else (batch,) if isinstance(batch, int) else tuple(dict.fromkeys(batch))
        promised = None if slo is None else LatencyGoal.parse(slo)
        return cls(parse_goal(goal), margin, sizes, data, within_s, training_s, device, promised)
