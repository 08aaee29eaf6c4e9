"""Where rows are stored (resident, mapped or streamed), and their compression in the cache. Off: streamed from the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.data.cache.tiers import choose_tier
from flatout.plan.knobs.knob import Decisions, SettingRules, always
from flatout.plan.plan import Choice, RejectedSetting
from flatout.plan.situation import Situation
from flatout.plan.tier import compression_of, surroundings

name = "tier"
off = "streamed"


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    train = s.job.data.train
    if train.stream is not None:
        yield Choice(name, "streamed", "the data is an iterable, which sets its own order")
        return
    if train.varies:
        yield Choice(name, "streamed", "samples change on each visit, so they can't be stored")
        return
    around = surroundings(
        s.job,
        s.device,
        s.ceilings,
        epochs=s.epochs,
        needed_rows_s=s.job.rows_per_step / s.plain.step_s if s.plain.step_s else None,
        cache=s.cache,
        disk_budget=str(s.pins.get("disk_budget", "auto")),
    )
    found = choose_tier(around)
    yield Choice(name, found.tier, found.why)
    if not train.in_memory:
        for other, why in found.rejected:
            yield RejectedSetting(name, other, why)
    writes = values[name] == "mapped" and not train.in_memory  # the pinned tier, if there is one
    if writes and s.cache is not None and "cache_compression" not in s.pins:
        threads = int(s.pins.get("reader_threads", 0))
        yield Choice("cache_compression", *compression_of(train, around, s.cache, threads))


rules = SettingRules(shown=always)
