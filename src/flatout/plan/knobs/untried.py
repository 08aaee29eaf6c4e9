"""Settings that are decided from what is known: where data lives, how often to save and to log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.data.datasets.iterables import IterableSource
from flatout.data.stores.tiers import choose_tier
from flatout.engine.settings import Settings
from flatout.machine.device import device_name
from flatout.plan.knobs.knob import Decisions
from flatout.plan.plan import Choice, Rejected
from flatout.plan.situation import Situation
from flatout.plan.tier import compression_of, surroundings


def device(s: Situation, values: Mapping[str, Any]) -> Decisions:
    pinned = s.pins.get("device", "auto") != "auto"
    why = "pinned by you" if pinned else "no accelerator here" if s.device.type == "cpu" else f"found {device_name(s.device)}"
    yield Choice("device", str(s.device), why, "pinned" if pinned else "default")


def tier(s: Situation, values: Mapping[str, Any]) -> Decisions:
    train = s.job.data.train
    if isinstance(train, IterableSource):
        yield Choice("tier", "streamed", "an iterable: its samples come in its own order")
        return
    if train.varies:
        yield Choice("tier", "streamed", "samples differ from visit to visit: what was read once is not served again")
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
    yield Choice("tier", found.tier, found.why)
    if not train.in_memory:
        for other, why in found.rejected:
            yield Rejected("tier", other, why)
    writes = values["tier"] == "mapped" and not train.in_memory  # the tier as it was pinned, if it was
    if writes and s.cache is not None and "cache_compression" not in s.pins:
        threads = int(s.pins.get("reader_threads", 0))
        yield Choice("cache_compression", *compression_of(train, around, s.cache, threads))


def deterministic(s: Situation, values: Mapping[str, Any]) -> Decisions:
    """A promise, not a speed: it is the same in every arm of a trial."""
    if s.device.type == "cpu":
        yield Choice("deterministic", True, "a resumed run equals an uninterrupted one bit for bit")
    else:
        yield Choice("deterministic", False, "fast kernels that add in any order; a resume is exact in data and state")


def keeping(s: Situation, values: Mapping[str, Any]) -> Decisions:
    often = f"as often as pays with a failure in {s.pins.get('failure_every', Settings.failure_every)}, by what a save takes"
    yield Choice("checkpoint_every", "auto", f"{often}; written beside the loop; also at the end, at the best and on SIGTERM")
    yield Choice("log_every", 0, "about twice a second; nothing waits for the device in between")
