"""A plan: a run's settings, the reason and source of each, and rejected values. Immutable; stored with the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flatout.base.kinds import check_kinds
from flatout.engine.settings import Settings
from flatout.plan.prediction import Prediction as Prediction


@dataclass(frozen=True)
class Choice:
    """`predicted` and `measured` are factors on the rate of plain fp32 PyTorch (1.0); None: unknown."""

    name: str
    value: Any
    why: str
    source: str = "default"
    predicted: float | None = None
    measured: float | None = None
    step_j: float | None = None  # joules of a step once it was kept; None: not tried, or no meter
    unforeseen: bool = False  # its gain differs from the prediction by more than the noise


@dataclass(frozen=True)
class RejectedSetting:
    name: str
    value: Any
    why: str


@dataclass(frozen=True)
class Plan:
    model: str
    machine: str
    unit: str
    per_sample: float  # units per sample: tokens of a window, else 1
    batch: int
    settings: Settings
    choices: tuple[Choice, ...]
    rejected: tuple[RejectedSetting, ...] = ()
    prediction: Prediction = field(default_factory=Prediction)
    frozen: str = ""  # how much of the model does not train

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Plan:
        check_kinds(cls, written)
        known = dict(written)
        known["settings"] = Settings(**written["settings"])
        known["choices"] = tuple(Choice(**choice) for choice in written["choices"])
        known["rejected"] = tuple(RejectedSetting(**rejected) for rejected in written["rejected"])
        known["prediction"] = Prediction(**written["prediction"])
        return cls(**known)
