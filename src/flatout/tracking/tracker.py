"""What a tracker is: it gets what a run is, its numbers step by step, and its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flatout.base.events import Event


@dataclass(frozen=True)
class Numbers:
    """Of one moment: what was logged at a step."""

    step: int
    at: float  # wall clock
    values: Mapping[str, float]


@dataclass(frozen=True)
class TrackedRun:
    """`kept`: what the tracker stored when it began with this run, such as the id of the run on a server; else empty."""

    name: str
    folder: Path
    parameters: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Protocol):
    """Any method may fail, hang or be slow: the run does not notice."""

    def begin(self, run: TrackedRun) -> Mapping[str, Any]:
        """Open or go on. Returns what `TrackedRun.kept` has when the run is resumed."""
        ...

    def log(self, numbers: Sequence[Numbers]) -> None: ...

    def end(self, status: str) -> None:
        """`status`: finished, failed, stopped, or running if the run goes on later."""
        ...


_OF_A_STEP = {
    "loss": "train/loss", "lr": "train/lr", "grad_norm": "train/grad_norm", "epoch": "train/epoch",
    "samples_per_s": "speed/samples_per_s", "tokens_per_s": "speed/tokens_per_s",
    "memory_bytes": "device/memory_bytes", "power_w": "device/power_w", "energy_j": "device/energy_j",
}  # fmt: skip
STATUS = {"finished": "finished", "failed": "failed", "stopped": "stopped"}


def numbers_of(event: Event) -> Numbers | None:
    """None for an event without numbers."""
    kind = event.get("kind")
    if kind == "step":
        found = {name: event.get(key) for key, name in _OF_A_STEP.items()}
    elif kind == "evaluation":
        found = {f"validation/{name}": value for name, value in (event.get("metrics") or {}).items()}
    else:
        return None
    values = {name: float(v) for name, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    step = event.get("step")
    return Numbers(int(step), float(event.get("at") or 0.0), values) if isinstance(step, int) and values else None
