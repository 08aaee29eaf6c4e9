"""Keep the optimizer and its state in host memory and update the weights there: less device memory, more time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.base.units import show_bytes
from flatout.engine.settings import Settings
from flatout.models.facts import parameter_count
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules
from flatout.plan.knobs.short_memory import is_short, left_off, offload_conflicts
from flatout.plan.knobs.splitting import SPLITS, split_conflict
from flatout.plan.situation import Situation

name = "optimizer_offload"
off = False
lossy = False
risky = True
meets: tuple[str, ...] = ("micro_batch", "activation_checkpointing")

_FACTOR = 0.9  # usually slower: the device waits for the bus twice, and for the host


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    yield left_off(name, s)


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    """Only if memory is short."""
    possible = s.device.type == "cuda" and not now.graph and now.precision != "fp16"
    if is_short(now) and possible and not now.optimizer_offload:
        held = show_bytes(8 * parameter_count(s.job.model))  # Adam keeps two float32 per weight
        yield Candidate(True, f"memory is short: frees up to {held} on the device; the host does the update", _FACTOR)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.optimizer_offload:
        yield from offload_conflicts(name, now)
        yield from split_conflict(now, name, SPLITS, "off")


rules = SettingRules(_conflicts)
