"""Where a step's time goes: on a CPU by the host's clock, on a GPU by events around a sampled step now and then."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import torch

from flatout.measure.ledger import Ledger


class Phases(Protocol):
    """Told when a phase of the step has been issued."""

    def begin(self) -> None: ...
    def mark(self, phase: str) -> None: ...
    def collect(self) -> None: ...
    def attribute(self, ledger: Ledger) -> None: ...


class NoPhases:
    def begin(self) -> None:
        pass

    def mark(self, phase: str) -> None:
        pass

    def collect(self) -> None:
        pass

    def attribute(self, ledger: Ledger) -> None:
        pass


class HostPhases:
    """The host does the work itself, so its clock says where the time went."""

    def __init__(self, ledger: Ledger) -> None:
        self.mark = ledger.lap

    def begin(self) -> None:
        pass

    def collect(self) -> None:
        pass

    def attribute(self, ledger: Ledger) -> None:
        pass


class DevicePhases:
    """Events around the first step of each log interval; read when the log point has waited for the device anyway."""

    def __init__(self) -> None:
        self._open: list[tuple[str, torch.cuda.Event]] | None = None
        self._closed: list[list[tuple[str, torch.cuda.Event]]] = []
        self._spent_ms: dict[str, float] = {}

    def begin(self) -> None:
        self._open = [("", _now())]

    def mark(self, phase: str) -> None:
        if self._open is not None:
            self._open.append((phase, _now()))
            if phase == "optimizer":
                self._closed.append(self._open)
                self._open = None

    def collect(self) -> None:
        for marks in self._closed:
            for (_, before), (phase, after) in pairwise(marks):
                self._spent_ms[phase] = self._spent_ms.get(phase, 0.0) + before.elapsed_time(after)
        self._closed = []

    def attribute(self, ledger: Ledger) -> None:
        """Issuing the step and waiting for it are both the device's time: share it out as the sampled steps had it."""
        whole = sum(self._spent_ms.values())
        if whole:
            for row in ("step", "device wait"):
                ledger.split(row, {phase: spent / whole for phase, spent in self._spent_ms.items()})


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
