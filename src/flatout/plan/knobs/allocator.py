"""How torch allocates GPU memory: blocks of fixed size, or expandable segments, which fragment less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.engine.settings import Settings
from flatout.engine.surroundings import allocator_settings
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "allocator"
off = "default"
lossy = False
risky = True
meets: tuple[str, ...] = ("micro_batch",)


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if s.device.type != "cuda":
        yield Choice(name, "default", "CUDA only")
    elif given := allocator_settings(s.device):
        yield Choice(name, "default", f"set in the environment: {given}")
    elif s.job.data.train.shapes_vary:
        yield Choice(name, "expandable", "batches of many shapes fragment blocks of fixed size")
    else:
        yield Choice(name, "default", "batches of one shape reuse the same blocks")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    """If memory is short: less fragmentation shows in what fits, not in the time of a step."""
    if s.device.type == "cuda" and now.micro_batch > 0 and now.allocator == "default" and not allocator_settings(s.device):
        yield Candidate("expandable", "memory is short: expandable segments fragment less", 1.0, unless_slower=True)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.allocator == "expandable" and now.device_kind != "cuda":
        yield f"allocator=expandable needs a CUDA device; the run is on {now.device_kind}: --off allocator"


rules = SettingRules(_conflicts)
