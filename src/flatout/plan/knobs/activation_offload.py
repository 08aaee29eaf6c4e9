"""What the backward needs waits in host memory: time for memory, as recomputing it is, at the price of the bus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.engine.settings import Settings
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules
from flatout.plan.knobs.short_memory import is_short, left_off, offload_conflicts
from flatout.plan.situation import Situation

name = "activation_offload"
off = False
lossy = False
risky = True
meets: tuple[str, ...] = ("micro_batch", "activation_checkpointing")

_FACTOR = 1.01  # below recomputing: the bus is slower than most of what it would save


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    yield left_off(name, s)


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    """Only where memory is short, and after blocks that compute again: those cost less."""
    if is_short(now) and not now.activation_offload and not now.graph and s.device.type == "cuda":
        yield Candidate(True, "memory is short: it may buy a larger micro-batch, for the way to the host and back", _FACTOR)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.activation_offload:
        yield from offload_conflicts(name, now)
        if now.compile == "reduce-overhead":
            yield (
                "activation_offload=on hands out memory that the graphs of compile=reduce-overhead can't know: --set compile=on"
            )


rules = SettingRules(_conflicts)
