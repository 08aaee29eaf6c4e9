"""How torch takes memory of a GPU: in blocks of fixed size, or in segments that grow, which leave fewer holes."""

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
        yield Choice(name, "default", "of CUDA devices only")
    elif given := allocator_settings(s.device):
        yield Choice(name, "default", f"set from outside: {given}")
    elif s.job.data.train.shapes_vary:
        yield Choice(name, "expandable", "batches of many shapes leave holes in blocks of fixed size")
    else:
        yield Choice(name, "default", "batches of one shape fit the same blocks again")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    """Where memory is short: fewer holes can be seen in what fits, not in the time of a step."""
    if s.device.type == "cuda" and now.micro_batch > 0 and now.allocator == "default" and not allocator_settings(s.device):
        yield Candidate("expandable", "memory is short: segments that grow leave fewer holes", 1.0, unless_slower=True)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.allocator == "expandable" and now.device_kind != "cuda":
        yield f"allocator=expandable is of CUDA devices and the run is on {now.device_kind}: --off allocator"


rules = SettingRules(_conflicts)
