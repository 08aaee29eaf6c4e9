"""The receipt: what was tried, kept and rejected, the measured times and the proof. Immutable, stored with the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flatout.base.kinds import check_kinds

KEPT, REJECTED, UNTRIED = "kept", "rejected", "untried"
ALL_TOGETHER = "all together"  # the entry that times all kept changes together


@dataclass(frozen=True)
class Entry:
    """One change and its result, compared with the settings kept so far. Factors are on the rate: 2.0 is twice as fast."""

    name: str
    value: Any
    instead_of: Any
    verdict: str
    why: str
    predicted: float | None = None
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    step_s: float | None = None
    against_s: float | None = None
    first_s: float | None = None
    peak_bytes: int | None = None
    check: Mapping[str, Any] | None = None
    took_s: float = 0.0
    step_j: float | None = None  # joules of a step, where the device has a meter
    against_j: float | None = None
    less: float | None = None  # 2.0: half the energy of a step
    less_low: float | None = None
    less_high: float | None = None


@dataclass(frozen=True)
class Receipt:
    reference: Mapping[str, Any]  # the baseline: settings with every knob off
    settings: Mapping[str, Any]  # the settings chosen
    entries: tuple[Entry, ...]
    reference_step_s: float | None = None
    step_s: float | None = None
    paired: Mapping[str, Any] | None = None  # the loss check: all changes together against the baseline on the same data
    isolated: bool = True
    stopped: str = ""  # why the search ended
    notes: tuple[str, ...] = ()
    took_s: float = 0.0
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    at: str = ""
    reference_step_j: float | None = None
    step_j: float | None = None
    prefer: str = "time"
    meter: str = ""  # of energy; empty: there is none

    @property
    def gain(self) -> float | None:
        """Speed-up of all changes. Uses times taken in turns if there are any: load on both sides cancels out."""
        whole = next((one for one in self.entries if one.name == ALL_TOGETHER and one.verdict == KEPT), None)
        if whole is not None and whole.measured is not None:
            return whole.measured
        return self.reference_step_s / self.step_s if self.reference_step_s and self.step_s else None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Receipt:
        check_kinds(cls, written)
        entries = tuple(Entry(**entry) for entry in written["entries"])
        return cls(**{**written, "entries": entries, "notes": tuple(written["notes"])})
