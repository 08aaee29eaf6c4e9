"""How many threads read and decode ahead of the loop; adjusted during the run. Off: one."""

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
    """Why no thread reads ahead; None if threads do."""
    train = s.job.data.train
    if train.stream is not None:
        return None
    if train.shapes_vary:
        return "nothing to read ahead: batches are taken from rows in memory"
    if tier == "resident" and filled_by(train, s.device) is None:
        before = "" if train.in_memory else ", after all are read before the first step"
        return f"nothing to read ahead: rows are in the device's memory{before}"
    if train.alone:
        return "no reading ahead: samples use the random generators of this process"
    return "nothing to read ahead: rows are in memory" if fixed_threads(train, s.device) == 0 else None


def threads_to_begin_with(s: Situation) -> int:
    """Threads that read ahead, as the feed will start them, unless memory is short."""
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
        return f"{threads}, which pass on batches from the {train.workers} workers of the dataset"
    if threads == cores:
        return f"starts with {threads}, one per core; fewer if they are idle"
    return f"starts with {threads} on {cores} cores; more if the loop waits for data"


rules = SettingRules(shown=lambda settings: settings.tier != "resident", zero="auto")
