"""What the knobs have in common that buy memory for time: they wait until memory turns out to be short."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.engine.settings import Settings
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation


def left_off(name: str, s: Situation) -> Choice:
    if s.device.type == "cpu":
        return Choice(name, False, "for accelerators: a run on a CPU has it in host memory already")
    return Choice(name, False, "not before memory turns out to be short")


def is_short(now: Settings) -> bool:
    """The batch had to be split, or its activations are computed again."""
    return now.micro_batch > 0 or now.activation_checkpointing


def offload_conflicts(name: str, now: Settings) -> Iterator[str]:
    """Of a setting that is on and keeps in host memory what a device would have."""
    if now.device_kind == "cpu":
        yield f"{name}=on moves memory to the host, where a run on cpu has it already: --off {name}"
    if now.graph:
        yield f"{name}=on waits for the host within a step, which a graph can't: --off graph"
