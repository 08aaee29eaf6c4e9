"""Knobs that no trial of a step turns: what they change is around it. They are decided from what is known, each in its file.

`PRICED` are promises: no trial may break one, but what it costs is measured and said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from flatout.plan.knobs import (
    checkpoint_every,
    deterministic,
    device,
    evaluation_batch,
    log_every,
    prefetch,
    reader_threads,
    tier,
)
from flatout.plan.knobs.knob import Decisions
from flatout.plan.price import Priced
from flatout.plan.situation import Situation


class Decided(Protocol):
    @property
    def name(self) -> str:
        """Of the setting it decides."""
        ...

    @property
    def off(self) -> Any:
        """What --off pins."""
        ...

    def default(self, s: Situation, values: Mapping[str, Any]) -> Decisions:
        """What to take, given what was decided before it."""
        ...


BEFORE: tuple[Decided, ...] = (device, tier, reader_threads, prefetch)  # the knobs of a step look at these
AFTER: tuple[Decided, ...] = (deterministic, evaluation_batch, checkpoint_every, log_every)
PRICED: tuple[Priced, ...] = (deterministic,)
