"""What serves batches to a training loop. Every tier yields the same batches, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flatout.base.errors import UsageError, did_you_mean
from flatout.data.cache.cache import Cache
from flatout.data.cache.device import DeviceStore, filled_by
from flatout.data.cache.filling import place
from flatout.data.data import Data
from flatout.data.feeds.bucketed import BucketFeed
from flatout.data.feeds.contract import Feed
from flatout.data.feeds.evaluation import TIERS, EvalFeed, eval_batches
from flatout.data.feeds.pinned import PinnedFeed
from flatout.data.feeds.resident import ResidentFeed
from flatout.data.feeds.streamed import IterableFeed
from flatout.data.feeds.together import CutFeed, ShareFeed, ShareOrder
from flatout.data.order.order import Sampler
from flatout.data.source import Source
from flatout.world.world import World

__all__ = ["TIERS", "EvalFeed", "Feed", "IterableFeed", "PinnedFeed", "ResidentFeed", "StoredFeed", "eval_batches", "feed"]


class StoredFeed(PinnedFeed):
    """Reads through a store that keeps rows as they are first read; the store goes with it."""

    def __init__(self, source: Source, *given: Any, moved: Sequence[str] = (), **options: Any) -> None:
        """`moved`: why it is not served by the tier that was asked for."""
        self._filled, self._moved = source, tuple(moved)
        super().__init__(source, *given, **options)

    @property
    def degraded(self) -> list[str]:
        return [*self.moved, *self._uplink.degraded, *self._filled.degraded]

    @property
    def moved(self) -> Sequence[str]:
        return self._moved

    def release(self) -> None:
        self.close()
        self._filled.release()


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
    """The training part of `data`, prepared and augmented, from the tier asked for, or the next one that has room for it.

    What is not at hand is read ahead by `threads`, `prefetch` batches of it; 0: as many as that turns out to take. Of a `world`
    of several processes each gets its share of every batch, until `total` samples were served to all of them.
    """
    if tier not in TIERS:
        raise UsageError(f"unknown tier {tier!r}; {did_you_mean(tier, TIERS)}")
    if world is None or world.data_size == 1:
        sampler = None if _has_own_order(data) else data.sampler(seed)
        return _served(data, tier, batch, device, seed, sampler, cache, threads, prefetch)
    if _has_own_order(data):
        return CutFeed(_served(data, tier, batch, device, seed, None, cache, threads, prefetch), world)
    order = ShareOrder(data.sampler(seed), batch, world, total)
    return ShareFeed(_served(data, tier, order.own, device, seed, order, cache, threads, prefetch), order, batch, world)


def _has_own_order(data: Data) -> bool:
    return data.train.stream is not None or data.train.shapes_vary


def _served(
    data: Data,
    tier: str,
    batch: int,
    device: torch.device | str,
    seed: int,
    sampler: Sampler | None,
    cache: Cache | None,
    threads: int,
    prefetch: int,
) -> Feed:
    if data.train.stream is not None:
        return IterableFeed(data.train, batch, device, transforms=data.transforms(), seed=seed, depth=prefetch)
    if data.train.shapes_vary:
        rows = data.train.by_length
        assert rows is not None  # a source that has `batch_tokens` has it
        options: Any = {"transforms": data.transforms(), "seed": seed}
        try:
            return BucketFeed(rows, batch, device, **options, resident=tier == "resident")
        except (torch.OutOfMemoryError, MemoryError) as error:
            return BucketFeed(rows, batch, device, **options, resident=False, degraded=[_without_room(error, device)])
    assert sampler is not None
    moved: list[str] = []
    kept: DeviceStore | None = None
    if tier == "resident":
        try:
            if (placed := filled_by(data.train, device)) is None:
                return ResidentFeed(data.train, sampler, batch, device, transforms=data.transforms(), seed=seed)
            kept = DeviceStore(placed, device)
        except (torch.OutOfMemoryError, MemoryError) as error:
            moved, tier = [_without_room(error, device)], "pinned"
    narrow, widen = data.train.compact()
    return StoredFeed(
        place(narrow, tier, cache),  # where the device keeps them, the source itself
        sampler,
        batch,
        device,
        transforms=(*widen, *data.transforms()),
        seed=seed,
        workers=threads or "auto",
        depth=prefetch or None,
        moved=moved,
        kept=kept,
    )


def _without_room(error: BaseException, device: torch.device | str) -> str:
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    why = str(error).strip().partition("\n")[0]
    return f"the data did not fit on the device, it is copied from host memory instead: {why}"
