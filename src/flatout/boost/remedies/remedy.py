"""What a remedy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit
from flatout.doctor.diagnosis import Diagnosis


@dataclass(frozen=True)
class Offer:
    """Worth a trial. `predicted`: the gain on the rate that the diagnosis speaks of, if it speaks of it."""

    name: str
    value: Any
    instead_of: Any
    predicted: float | None = None
    edits: tuple[Edit, ...] = ()  # the same, written into the script; empty where it can't be expressed


STEPS, EVALUATIONS = "steps", "evaluations"


class Remedy(ABC):
    name: str
    measures = STEPS  # what it makes faster
    steadies = False  # with it two processes of one script differ less: tried first, so that the gains of others show
    feeds = False  # steps wait less for data: tried before what makes them shorter, which would only wait more
    spares_launches = False  # on a device: nothing to gain from while it computes all the time
    shortens_computing = False  # on a device: nothing to gain from while the device waits for the host
    of_gpu = False
    written_in_part = False  # its edits hold less than what is tried
    can_be_a_line = True  # of the script: see boost.keeping
    values = '"on"'  # in words
    precision = "fp32"  # how far results may differ: see measure.proof

    def offered(self, diagnosis: Diagnosis) -> list[Offer]:
        return [replace(one, edits=tuple(self.edits(one.value, diagnosis))) for one in self.offers(diagnosis)]

    @abstractmethod
    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        """None where it does not apply."""

    @abstractmethod
    def apply(self, value: Any, hooks: Hooks) -> None:
        """In the process of the script, before it starts."""

    def takes(self, value: Any) -> bool:
        return bool(value == "on")

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        """The same, written into the script; empty where it can't be expressed."""
        return []


def predicted(diagnosis: Diagnosis, *ids: str) -> float | None:
    gains = [one.predicted_gain(diagnosis.case.step_ms) for one in diagnosis.findings if one.id in ids]
    return max(gains, default=None)
