"""How many batches are read ahead of the loop; adjusted during the run. Off: one, while the previous one is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.data.feeds.tuning import SPARE, depth_for
from flatout.plan.knobs.knob import Decisions, SettingRules
from flatout.plan.knobs.reader_threads import nothing_to_read, threads_to_begin_with
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "prefetch"
off = 1


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    yield Choice(name, 0, nothing_to_read(s, str(values["tier"])) or _ahead(s))


def _ahead(s: Situation) -> str:
    if s.job.data.train.stream is not None:
        return "a few batches, read by the iterable's one worker"
    threads = threads_to_begin_with(s)
    many = f"{threads} threads" if threads > 1 else "1 thread"
    if s.pins.get("reader_threads"):
        return f"{depth_for(threads)}: one for each of {many}, plus {SPARE} ready"
    return f"starts with {depth_for(threads)} for {many}; more if batches come in bursts and memory is free"


rules = SettingRules(shown=lambda settings: settings.tier != "resident", zero="auto")
