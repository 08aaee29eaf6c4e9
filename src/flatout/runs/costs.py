"""What a run took: hours, joules and USD by the kind of work, and which of it was not training.

It reads the files of a run that may be damaged, unfinished, still written to, or of an older version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flatout.base.errors import MissingFile
from flatout.measure.ledger import TRAINING_ROWS
from flatout.store.run_folder import RunFolder
from flatout.store.sessions import Session, sessions_of

TRAINING, RUNNING, RESUMABLE = "training", "still running", "unfinished, can be resumed"
WASTE = {
    "setup": "setup", "compile": "compiling", "data": "waiting for data", "evaluation": "evaluation", "checkpoint": "saving",
    "logging": "logging and other", "unattributed": "logging and other",
}  # fmt: skip
TRIALS, KILLED, FAILED = "trials of settings", "killed work", "failed runs"
STUDIES, FAILED_TRIALS = "studies", "failed trials of studies"
KINDS = (TRAINING, STUDIES, *dict.fromkeys(WASTE.values()), TRIALS, FAILED_TRIALS, KILLED, FAILED, RESUMABLE, RUNNING)
WASTED = frozenset({*WASTE.values(), TRIALS, FAILED_TRIALS, KILLED, FAILED})


@dataclass
class RunCost:
    """`seconds` and `joules` by kind of work; joules of the device. `meter`: empty if no energy is known."""

    name: str
    status: str
    began: float
    machine: str = ""
    price: float | None = None  # USD per hour
    meter: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    joules: dict[str, float] = field(default_factory=dict)

    @property
    def hours(self) -> float:
        return math.fsum(self.seconds.values()) / 3600

    @property
    def wasted_hours(self) -> float:
        return math.fsum(spent for kind, spent in self.seconds.items() if kind in WASTED) / 3600

    @property
    def usd(self) -> float | None:
        return None if self.price is None else self.hours * self.price

    @property
    def wasted_usd(self) -> float | None:
        return None if self.price is None else self.wasted_hours * self.price

    def add(self, kind: str, seconds: float) -> None:
        if seconds > 0:
            self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds


def cost_of(folder: RunFolder) -> RunCost:
    """Raises StoreError if the run's own description is damaged."""
    status = folder.status
    result = {} if status == "damaged" else folder.result
    sessions = sessions_of(folder.events_path)
    first = sessions[0].first if sessions else {}
    cost = RunCost(folder.name, status, float(folder.about["created"]), str(first.get("machine") or ""))
    cost.price = _number(result.get("price_per_hour")) or _number(first.get("price_per_hour")) or _asked(folder)
    ledger = result.get("ledger")
    if isinstance(ledger, Mapping) and status == "finished":
        _finished(cost, result, ledger, sessions)
    else:
        _unfinished(cost, status, sessions)
    cost.add(TRIALS, _trials_s(folder))
    return cost


def _killed_s(result: Mapping[str, Any], sessions: list[Session]) -> float:
    """Work that was done again: what all processes of a run took, without what its ledger has."""
    wall_s = _number(result.get("wall_seconds")) or 0.0
    return max(0.0, math.fsum(one.seconds for one in sessions) - wall_s) if len(sessions) > 1 else 0.0


def _finished(cost: RunCost, result: Mapping[str, Any], ledger: Mapping[str, Any], sessions: list[Session]) -> None:
    _by_row(cost, result, ledger)
    cost.add(KILLED, _killed_s(result, sessions))


def _by_row(cost: RunCost, result: Mapping[str, Any], ledger: Mapping[str, Any]) -> None:
    for row, spent in ledger.items():
        if (seconds := _number(spent)) is not None:
            cost.add(kind_of(row), seconds)
    device = (result.get("energy") or {}).get("device") or {}
    if "joules" in device:
        cost.meter = str(device.get("meter"))
        for row, joules in device["by_phase"].items():
            cost.joules[kind_of(row)] = cost.joules.get(kind_of(row), 0.0) + joules
    elif (hours := _number(result.get("energy_wh"))) is not None:  # of a version that kept no phases
        cost.meter, cost.joules = "energy counter", {TRAINING: hours * 3600}


def kind_of(row: str) -> str:
    """Of a row of the ledger."""
    return WASTE.get(row, TRAINING if row in TRAINING_ROWS else "logging and other")


def _unfinished(cost: RunCost, status: str, sessions: list[Session]) -> None:
    for place, session in enumerate(sessions):
        if status in ("failed", "diverged"):
            cost.add(FAILED, session.seconds)
        elif status == "running" and place == len(sessions) - 1:
            cost.add(RUNNING, session.seconds)
        else:
            cost.add(RESUMABLE, session.kept_s)
            cost.add(KILLED, session.seconds - session.kept_s)
    if sessions and (joules := sessions[-1].energy_j) is not None:
        cost.meter = "meter of an unfinished run"
        cost.joules[FAILED if status in ("failed", "diverged") else RUNNING if status == "running" else RESUMABLE] = joules


def _trials_s(folder: RunFolder) -> float:
    try:
        return folder.parsed("receipt.json", lambda written: _number(written.get("took_s")) or 0.0)
    except MissingFile:
        return 0.0


def _asked(folder: RunFolder) -> float | None:
    try:
        return folder.parsed("recipe.json", lambda recipe: _number(recipe.get("price_per_hour")))
    except MissingFile:
        return None


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None
