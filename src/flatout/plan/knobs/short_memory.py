"""Shared by knobs that trade time for memory: they are tried only if memory is short."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.engine.settings import Settings
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation


def left_off(name: str, s: Situation) -> Choice:
    if s.device.type == "cpu":
        return Choice(name, False, "for accelerators only: on a CPU everything is in host memory")
    return Choice(name, False, "not needed unless memory runs short")


def is_short(now: Settings) -> bool:
    """The batch was split, or activation checkpointing is on."""
    return now.micro_batch > 0 or now.activation_checkpointing


def offload_conflicts(name: str, now: Settings) -> Iterator[str]:
    """Conflicts of a setting that moves data from the device to host memory."""
    if now.device_kind == "cpu":
        yield f"{name}=on is for accelerators; on cpu everything is in host memory: --off {name}"
    if now.graph:
        yield f"{name}=on waits for the host during a step and does not work with graph=on: --off graph"
