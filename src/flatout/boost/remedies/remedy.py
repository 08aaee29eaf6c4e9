"""The base class of remedies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit
from flatout.doctor.diagnosis import Diagnosis


@dataclass(frozen=True)
class Offer:
    """A remedy worth a trial. `predicted`: the speed-up that the diagnosis predicts, if any."""

    name: str
    value: Any
    instead_of: Any
    predicted: float | None = None
    edits: tuple[Edit, ...] = ()  # the same as edits of the script; empty if not possible


STEPS, EVALUATIONS = "steps", "evaluations"


class Remedy(ABC):
    name: str
    measures = STEPS  # what it speeds up
    steadies = False  # reduces noise between processes: tried first, so that other speed-ups can be measured
    computes_the_same = False  # bit for bit, or but for the order of a few sums: tried together with others like it
    feeds = False  # reduces the wait for data: tried before remedies for computing, whose gain the wait would hide
    spares_launches = False  # no gain on a device that is always busy
    shortens_computing = False  # no gain on a device that waits for the host
    may_slow = False  # may make steps several times longer: never tried at once with others, whose gain it would hide
    slow_to_try = False  # tens of seconds: tried after those that promise somewhat less
    of_gpu = False
    written_in_part = False  # its edits do only a part of the remedy
    can_be_a_line = True  # can be used with flatout.boost.keep
    values = '"on"'  # allowed values, for messages
    precision = "fp32"  # tolerance for results: see measure.proof

    def offered(self, diagnosis: Diagnosis) -> list[Offer]:
        return [replace(one, edits=tuple(self.edits(one.value, diagnosis))) for one in self.offers(diagnosis)]

    @abstractmethod
    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        """Empty if it does not apply."""

    @abstractmethod
    def apply(self, value: Any, hooks: Hooks) -> None:
        """Called in the script's process before the script starts."""

    def takes(self, value: Any) -> bool:
        return bool(value == "on")

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        """The remedy as edits of the script; empty if not possible."""
        return []


def predicted(diagnosis: Diagnosis, *ids: str) -> float | None:
    gains = [one.predicted_gain(diagnosis.case.step_ms) for one in diagnosis.findings if one.id in ids]
    return max(gains, default=None)
