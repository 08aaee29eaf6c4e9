"""What a knob is: the owner of one setting. New knobs inherit the conformance test in flatout.testing."""

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
    """A value worth a trial. `factor`: expected speed-up, if the knob knows better than the cost model."""

    value: Any
    why: str
    factor: float | None = None
    cost_s: float = 0.0  # one-off cost outside the timed steps: compiling, capturing
    unless_slower: bool = False  # kept even without a gain: it has a benefit that a trial can't show
    compiles_anew: bool = True  # a compiled step must be compiled again for this value


@dataclass(frozen=True)
class SettingRules:
    """Conflicts of a setting, and how `explain` shows it."""

    conflicts: Callable[[Settings], Iterable[str]] = lambda settings: ()  # with other settings, each with a fix
    one_process: bool = False  # off with several processes
    not_split_by: tuple[str, ...] = ()  # mesh axes: off if one of them splits the weights
    shown: Callable[[Settings], bool] | None = None  # whether it has its own row; None: if not the default
    zero: str = ""  # word shown for 0


def always(settings: Settings) -> bool:
    return True


class OfSetting(Protocol):
    @property
    def name(self) -> str:
        """Name of the setting."""
        ...

    @property
    def off(self) -> Any:
        """The baseline's value, which --off pins."""
        ...


@runtime_checkable
class SettingOwner(OfSetting, Protocol):
    """A module of plan/knobs named like a field of Settings. Most are also Decided; those that are tried are Knobs."""

    @property
    def rules(self) -> SettingRules: ...


@runtime_checkable
class Decided(OfSetting, Protocol):
    def default(self, s: Situation, values: Mapping[str, Any]) -> Decisions:
        """The value without a trial, given the values decided before."""
        ...


@runtime_checkable
class Knob(Decided, Protocol):
    @property
    def lossy(self) -> bool:
        """Whether it changes the arithmetic. If so, a training run must prove it, not just one step."""
        ...

    @property
    def risky(self) -> bool:
        """Whether a trial may crash its process. If so, it never runs in the user's process."""
        ...

    @property
    def meets(self) -> tuple[str, ...]:
        """Knobs that change this one's gain: if rejected for no gain, it is tried again after one of them is kept."""
        ...

    def candidates(self, s: Situation, now: Settings) -> Iterator[Candidate]:
        """Values to try from the current settings."""
        ...


@runtime_checkable
class Priced(Protocol):
    """A guarantee: trials never change it, but its cost is measured and shown."""

    @property
    def name(self) -> str: ...

    @property
    def priced(self) -> bool: ...

    def candidates(self, s: Situation, now: Settings) -> Iterator[Candidate]: ...

    def price(self, value: Any, found: Comparison) -> str:
        """The price as text. `found`: seconds with `value` divided by seconds with the present setting."""
        ...

    def unpriced(self, why: str) -> str:
        """Why there is no price, given the trial's failure."""
        ...
