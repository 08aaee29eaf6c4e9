"""What a knob is. Whoever writes one more inherits the conformance test in flatout.testing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flatout.engine.settings import Settings
from flatout.plan.plan import Choice, Rejected
from flatout.plan.situation import Situation

Decisions = Iterator[Choice | Rejected]


@dataclass(frozen=True)
class Candidate:
    """A value worth a trial. `factor`: on the rate, where the knob knows better than the cost model."""

    value: Any
    why: str
    factor: float | None = None
    cost_s: float = 0.0  # once, beside the steps that are timed: compiling, capturing
    unless_slower: bool = False  # kept without a gain too: it is good for something that a trial can't see
    compiles_anew: bool = True  # where a step is compiled: what the compiler makes of it is another thing with this value


class Knob(Protocol):
    @property
    def name(self) -> str:
        """Of the setting it turns."""
        ...

    @property
    def off(self) -> Any:
        """The plain value: what the reference has, and what --off pins."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether it changes the arithmetic: then steps on the same data must agree too, not one step alone."""
        ...

    @property
    def risky(self) -> bool:
        """Whether a trial may take its process with it: such a one is never tried in the process of the user."""
        ...

    @property
    def meets(self) -> tuple[str, ...]:
        """Knobs that change what this one gains: rejected for lack of gain, it is tried again after one of them was kept."""
        ...

    def default(self, s: Situation, values: Mapping[str, Any]) -> Decisions:
        """What to take without a trial, given what was decided before it."""
        ...

    def candidates(self, s: Situation, now: Settings) -> Iterator[Candidate]:
        """What to try from where the search stands."""
        ...
