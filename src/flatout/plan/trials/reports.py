"""Questions to a bench and its replies: plain data, so that it can be sent, stored and replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

OUT_OF_MEMORY, CRASHED, HUNG, SLOW, FAILED = "out of memory", "crashed", "hung", "too slow", "failed"
CTRL_C = "Ctrl-C: "  # prefix of the message after Ctrl-C


@dataclass(frozen=True)
class Ask:
    """Try `settings` against `against`, the current settings; both are proven against `reference`, the baseline."""

    settings: Mapping[str, Any]
    against: Mapping[str, Any] | None
    reference: Mapping[str, Any]
    measure_s: float = 2.0  # approximate time for timing
    slowest_step_s: float | None = None  # a slower step ends the trial
    patience_s: float | None = None  # for the whole trial without the process start; then it counts as hung
    energy_windows: int = 1  # how often the energy of a second of steps is measured, with a meter too slow for single repeats


@dataclass(frozen=True)
class TrialReport:
    """One trial. `failure` is empty, or one of the words above; `why` has its details."""

    settings: Mapping[str, Any]
    failure: str = ""
    why: str = ""
    first_s: float | None = None  # building, compiling, capturing, the first step
    steps_s: tuple[float, ...] = ()  # seconds per step, one per repeat
    against_s: tuple[float, ...] = ()  # of the other arm, timed in turns with these; empty: not in turns
    peak_bytes: int | None = None
    check: Mapping[str, Any] | None = None  # of one step, against the baseline
    took_s: float = 0.0
    draws: bool = False  # the model uses random numbers, so its repeats differ
    steps_j: tuple[float, ...] = ()  # joules per step, one per repeat or window; empty: no meter
    against_j: tuple[float, ...] = ()  # of the other arm, in turns with these
    meter: str = ""  # that the joules are from

    @property
    def ran(self) -> bool:
        return not self.failure

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> TrialReport:
        repeats = ("steps_s", "against_s", "steps_j", "against_j")
        return cls(**{**written, **{name: tuple(written.get(name, ())) for name in repeats}})


@dataclass(frozen=True)
class PeakMemory:
    """Peak memory of a step on `rows` rows of the longest batch, and the memory available."""

    rows: int
    peak_bytes: int = 0
    room_bytes: int = 0
    failure: str = ""
    why: str = ""


_MARGIN = 0.08  # of the memory, for other batches, fragmentation and libraries


def fitting_rows(probes: Sequence[PeakMemory], batch: int) -> int:
    """The largest micro-batch that fits, from two probes (memory is a + b * rows): the batch, or a half, a quarter, ..."""
    small, large = probes[0], probes[-1]
    a_row = (large.peak_bytes - small.peak_bytes) / max(1, large.rows - small.rows)
    fixed = small.peak_bytes - a_row * small.rows
    rows = batch
    while rows > large.rows and fixed + a_row * rows > (1 - _MARGIN) * large.room_bytes:
        rows = (rows + 1) // 2
    return rows


@dataclass(frozen=True)
class Losses:
    """The loss of every step of an arm trained from the start."""

    settings: Mapping[str, Any]
    losses: tuple[float, ...] = ()
    failure: str = ""
    why: str = ""
    took_s: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Losses:
        return cls(**{**written, "losses": tuple(written["losses"])})


class Tries(Protocol):
    """Runs trials: a bench, a process with one, or a recording."""

    def attempt(self, ask: Ask) -> TrialReport: ...

    def losses(self, settings: Mapping[str, Any], steps: int, seed: int, after: int = 0) -> Losses: ...

    def held(self, settings: Mapping[str, Any], rows: int) -> PeakMemory: ...
