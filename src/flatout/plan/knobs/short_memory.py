"""What the knobs have in common that buy memory for time: they wait until memory turns out to be short."""

from __future__ import annotations

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
