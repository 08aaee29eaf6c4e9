"""What a knob is: it owns a setting. Whoever writes one more inherits the conformance test in flatout.testing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from flatout.engine.settings import Settings
from flatout.measure.stats import Comparison
from flatout.plan.plan import Choice, RejectedSetting
from flatout.plan.situation import Situation

Decisions = Iterator[Choice | RejectedSetting]


@dataclass(frozen=True)
class Candidate:
    """A value worth a trial. `factor`: on the rate, where the knob knows better than the cost model."""

    value: Any
    why: str
    factor: float | None = None
    cost_s: float = 0.0  # once, beside the steps that are timed: compiling, capturing
    unless_slower: bool = False  # kept without a gain too: it is good for something that a trial can't see
    compiles_anew: bool = True  # where a step is compiled: what the compiler makes of it is another thing with this value


@dataclass(frozen=True)
class SettingRules:
    """What a setting can't go with, and its words in `explain`."""

    conflicts: Callable[[Settings], Iterable[str]] = lambda settings: ()  # with others, each with the way out
    one_process: bool = False  # off where there are several
    not_split_by: tuple[str, ...] = ()  # axes of a mesh: off where one of them splits the weights
    shown: Callable[[Settings], bool] | None = None  # whether it has a row; None: where it is not the default
    zero: str = ""  # what 0 means, in a word


def always(settings: Settings) -> bool:
    return True


class OfSetting(Protocol):
    @property
    def name(self) -> str:
        """Of the setting."""
        ...

    @property
    def off(self) -> Any:
        """The plain value: what the reference has, and what --off pins."""
        ...


@runtime_checkable
class SettingOwner(OfSetting, Protocol):
    """A file of plan/knobs that is called like a field of Settings. Mostly it is Decided too; a Knob, where it is tried out."""

    @property
    def rules(self) -> SettingRules: ...


@runtime_checkable
class Decided(OfSetting, Protocol):
    def default(self, s: Situation, values: Mapping[str, Any]) -> Decisions:
        """What to take without a trial, given what was decided before it."""
        ...


@runtime_checkable
class Knob(Decided, Protocol):
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

    def candidates(self, s: Situation, now: Settings) -> Iterator[Candidate]:
        """What to try from where the search stands."""
        ...


@runtime_checkable
class Priced(Protocol):
    """A promise: no trial may break it, but what it costs is measured and said."""

    @property
    def name(self) -> str: ...

    @property
    def priced(self) -> bool: ...

    def candidates(self, s: Situation, now: Settings) -> Iterator[Candidate]: ...

    def price(self, value: Any, found: Comparison) -> str:
        """In words. `found`: seconds with `value` over seconds as it stands."""
        ...

    def unpriced(self, why: str) -> str:
        """Why there is no price, from what the trial failed with."""
        ...
