"""Store activations in host memory until the backward pass: less device memory, but copies over the bus."""

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

_FACTOR = 1.01  # below recomputing, because the bus is usually slower


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    yield left_off(name, s)


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    """Only if memory is short, and after activation checkpointing, which costs less."""
    if is_short(now) and not now.activation_offload and not now.graph and s.device.type == "cuda":
        yield Candidate(True, "memory is short: may allow a larger micro-batch, at the cost of copies to the host", _FACTOR)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.activation_offload:
        yield from offload_conflicts(name, now)
        if now.compile == "reduce-overhead":
            yield ("activation_offload=on does not work with the CUDA graphs of compile=reduce-overhead: --set compile=on")


rules = SettingRules(_conflicts)
