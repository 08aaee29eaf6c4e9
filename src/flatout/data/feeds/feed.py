"""Chooses the feed that serves batches to a training loop. Every tier serves the same batches, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

import torch

from flatout.base.errors import UsageError, did_you_mean
from flatout.data.cache.cache import Cache
from flatout.data.cache.device import DeviceStore
from flatout.data.cache.filling import TIERS, place
from flatout.data.data import Data
from flatout.data.feeds.bucketed import BucketFeed
from flatout.data.feeds.contract import Feed, FeedOptions
from flatout.data.feeds.evaluation import EvalFeed, eval_batches
from flatout.data.feeds.pinned import PinnedFeed
from flatout.data.feeds.ranks import RunShare
from flatout.data.feeds.resident import ResidentFeed, filled_by
from flatout.data.feeds.streamed import IterableFeed
from flatout.data.feeds.together import CutFeed, ShareFeed
from flatout.data.order.keyed import Sampler
from flatout.data.source import Source, Transform
from flatout.world.world import World

__all__ = [
    "TIERS", "EvalFeed", "Feed", "IterableFeed", "PinnedFeed", "ResidentFeed", "eval_batches", "feed", "feed_options",
    "serve_rows",
]  # fmt: skip


def feed(
    data: Data,
    tier: str,
    batch: int,
    device: torch.device | str,
    seed: int = 0,
    *,
    cache: Cache | None = None,
    threads: int = 0,
    prefetch: int = 0,
    world: World | None = None,
    total: int | None = None,
) -> Feed:
    """The training part of `data`, prepared and augmented, from the requested tier, or the next tier that has room for it.

    Rows that are not in memory are read ahead by `threads`, `prefetch` batches ahead; 0: tuned while it runs. In a `world` of
    several processes each gets its share of every batch. `total` is the number of samples of the run, over all processes.
    """
    if tier not in TIERS:
        raise UsageError(f"unknown tier {tier!r}; {did_you_mean(tier, TIERS)}")
    options = feed_options(batch, device, data.transforms(), seed, threads or "auto", prefetch or "auto")
    if world is not None and world.data_size == 1:
        world = None
    if data.train.stream is not None or data.train.shapes_vary:  # these have their own order
        served = _in_its_own_order(data.train, tier, options)
        return served if world is None else CutFeed(served, world)
    if world is None:
        return serve_rows(data.train, data.sampler(seed), tier, options, cache)
    share = RunShare(data.sampler(seed), batch, world, total)
    return ShareFeed(serve_rows(data.train, share, tier, replace(options, batch=share.own), cache), share, batch, world)


def feed_options(
    batch: int,
    device: torch.device | str,
    transforms: Sequence[Transform] = (),
    seed: int = 0,
    workers: int | str = "auto",
    prefetch: int | str = "auto",
) -> FeedOptions:
    if not _is_whole(batch) or batch < 1:
        raise UsageError(f"batch must be a number of rows, 1 or more, got {batch!r}")
    if workers != "auto" and not (_is_whole(workers) and workers >= 0):
        raise UsageError(f"workers must be 'auto' or a number of reading threads, 0 for none, got {workers!r}")
    if prefetch != "auto" and not (_is_whole(prefetch) and prefetch >= 1):
        hint = "; 'auto' finds the number while it runs" if _is_whole(prefetch) and prefetch == 0 else ""
        raise UsageError(f"prefetch must be 'auto' or a number of batches to read ahead, 1 or more, got {prefetch!r}{hint}")
    threads, depth = (value if _is_whole(value) else None for value in (workers, prefetch))
    return FeedOptions(batch, torch.device(device), tuple(transforms), seed, threads, depth)


def serve_rows(source: Source, order: Sampler, tier: str, options: FeedOptions, cache: Cache | None = None) -> Feed:
    """Rows by number, from the requested tier, or from host memory if the device has no room."""
    moved: list[str] = []
    kept: DeviceStore | None = None
    if tier == "resident":
        try:
            if (placed := filled_by(source, options.device)) is None:
                return ResidentFeed(source, order, options)
            kept = DeviceStore(placed, options.device)
        except (torch.OutOfMemoryError, MemoryError) as error:
            moved, tier = [_without_room(error, options.device)], "pinned"
    narrow, widen = source.compact()
    options = replace(options, transforms=(*widen, *options.transforms))
    return PinnedFeed(place(narrow, tier, cache), order, options, kept=kept, moved=moved)


def _in_its_own_order(source: Source, tier: str, options: FeedOptions) -> Feed:
    if source.stream is not None:
        return IterableFeed(source, options)
    rows = source.by_length
    assert rows is not None  # every source that has `batch_tokens` has it
    try:
        return BucketFeed(rows, options, resident=tier == "resident")
    except (torch.OutOfMemoryError, MemoryError) as error:
        return BucketFeed(rows, options, resident=False, degraded=[_without_room(error, options.device)])


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _without_room(error: BaseException, device: torch.device) -> str:
    if device.type == "cuda":
        torch.cuda.empty_cache()
    why = str(error).strip().partition("\n")[0]
    return f"the data did not fit on the device, it is copied from host memory instead: {why}"
