"""How many threads read and decode ahead of the loop. What it takes shows while it runs. Off: one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.data.feeds.pinned import first_threads, fixed_threads
from flatout.data.feeds.resident import filled_by
from flatout.data.feeds.tuning import ReadingBudget
from flatout.plan.knobs.knob import Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "reader_threads"
off = 1


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    yield Choice(name, 0, nothing_to_read(s, str(values["tier"])) or _starts_with(s))


def nothing_to_read(s: Situation, tier: str) -> str | None:
    """Why no thread reads ahead, if none does."""
    train = s.job.data.train
    if train.stream is not None:
        return None
    if train.shapes_vary:
        return "nothing to read ahead: batches are picked from rows in memory"
    if tier == "resident" and filled_by(train, s.device) is None:
        before = "" if train.in_memory else ", once they were all read before the first step"
        return f"nothing to read ahead: rows are picked out where they are used{before}"
    if train.alone:
        return "nothing is read ahead: samples draw from the random numbers of this process"
    return "nothing to read ahead: rows are in memory" if fixed_threads(train, s.device) == 0 else None


def threads_to_begin_with(s: Situation) -> int:
    """Of what is read ahead: as the feed will have it, unless memory is short."""
    if s.job.data.train.stream is not None:
        return 1
    budget = ReadingBudget.here()
    pinned = int(s.pins.get(name, 0))
    return pinned or fixed_threads(s.job.data.train, s.device) or first_threads(s.job.data.train, s.device, budget.most)


def _starts_with(s: Situation) -> str:
    train, threads, cores = s.job.data.train, threads_to_begin_with(s), ReadingBudget.here().cores
    if train.stream is not None:
        return "an iterable is read by one worker"
    if fixed_threads(train, s.device) is not None:
        return f"{threads}, which hand over what the {train.workers} workers of the dataset read"
    if threads == cores:
        return f"starts with {threads}, one a core; fewer once they are idle"
    return f"starts with {threads} beside {cores} cores, more while the loop waits for data"


rules = SettingRules(shown=lambda settings: settings.tier != "resident", zero="auto")
