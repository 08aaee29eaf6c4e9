"""Batches on a device for your own training loop: `for batch in fo.loader(data, 1024): ...` is one epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from flatout.base.errors import DataError, UsageError, did_you_mean
from flatout.data.cache.cache import Cache, disk_bytes
from flatout.data.cache.tiers import Surroundings, choose_tier
from flatout.data.data import PARTS, Data
from flatout.data.feeds.courses import BucketCourse, Course, FeedCourse
from flatout.data.feeds.feed import TIERS, IterableFeed, feed_options, serve_rows
from flatout.data.feeds.ranks import EpochShare, rank_and_world
from flatout.data.feeds.resident import filled_by
from flatout.data.order.draws import Sequential
from flatout.data.source import Batch, Source
from flatout.data.sources.arrays import arrays
from flatout.machine.host import free_host_bytes


def loader(
    data: Data | Mapping[str, Any] | Sequence[Any],
    batch: int,
    *,
    device: torch.device | str = "auto",
    tier: str = "auto",
    seed: int = 0,
    rank: int | None = None,
    world: int | None = None,
    drop_last: bool = False,
    part: str = "train",
    workers: int | str = "auto",
    prefetch: int | str = "auto",
    tokens: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    disk_budget: str = "auto",
    cache_compression: str = "none",
) -> Loader:
    """Shuffled batches of `data`, prepared and augmented. Each is a dict of tensors on `device`.

    `data` comes from fo.data, or is a dict of columns (`{"x": ..., "y": ...}`) or a pair (x, y). `batch` is per process: if
    several are started by torchrun, or `rank` and `world` are given, each gets its part of the batches of batch * world rows
    that one process would see. If an epoch does not divide, its last batch is short; if ranks would get unequal parts, it is
    filled up with the epoch's first rows. `drop_last` leaves it out. Validation and test rows come in stored order.

    `tier` says where rows are kept: "resident" on the device, "pinned" in host memory, "mapped" in the folder `cache`,
    "streamed" nowhere. Runs and loaders with the same `cache` share its rows. The cache takes at most `disk_budget`, by default
    half of the sum of its size and the free space, and is compressed as `cache_compression` says. `workers` threads read rows
    that are not in memory, `prefetch` batches ahead; by default both are tuned while it runs. With `tokens`, sequences of
    differing lengths come in batches of at most this many tokens, padding included, and at most `batch` rows.
    """
    whole = _as_data(data)
    source = _source(whole, part)
    transforms = whole.transforms() if part == "train" else whole.prepare
    options = feed_options(batch, _device(device), transforms, seed, workers, prefetch)
    if tier not in ("auto", *TIERS):
        raise UsageError(f"unknown tier {tier!r}; {did_you_mean(tier, ('auto', *TIERS))}")
    own_rank, ranks = rank_and_world(rank, world)
    if tokens is None and part == "train":
        tokens = source.batch_tokens
    notes: list[str] = []
    course: Course
    if (stream := source.stream) is not None:
        if ranks > 1 or tokens is not None:
            raise UsageError("an iterable keeps its own order: give each process its own iterable, with world=1 and no tokens")
        batches = None if stream.length is None else stream.length // batch if drop_last else -(-stream.length // batch)
        course = FeedCourse(IterableFeed(source, options), stream.length, batches)
    elif tokens is not None:
        course = BucketCourse(source, options, tokens, own_rank, ranks)
    else:
        sampler = whole.sampler(seed) if part == "train" else Sequential(len(source))
        share = EpochShare(sampler, batch, own_rank, ranks, drop_last)
        order = share if ranks > 1 or drop_last else sampler
        kept = None if cache is None else Cache(Path(cache), disk_bytes(Path(cache), disk_budget), cache_compression)
        tier = _tier(source, options.device, kept) if tier == "auto" else tier
        feed = serve_rows(source, order, tier, replace(options, epoch_rows=share.epoch_rows), kept)
        course = FeedCourse(feed, share.epoch_rows, share.batches, ranks)
        if kept is not None and (over_budget := kept.trim()):  # the files that this loader uses are open now and stay
            notes.append(over_budget)
    return Loader(whole, source, course, part, seed, notes)


class Loader:
    """Iterate once for each epoch; each has a new order. After a loop that was left early, the next epoch begins.

    `state_dict()` works at any point of a loop and is the same on every rank. After `load_state_dict` the next loop continues
    with the batch that follows. Reading threads end with `close()`, at the end of a `with`, or when the loader is freed.
    """

    def __init__(self, data: Data, source: Source, course: Course, part: str, seed: int, notes: Sequence[str] = ()) -> None:
        self.epoch = 0
        self._notes = tuple(notes)
        self._data, self._source, self._course, self._part, self._seed = data, source, course, part, seed
        self._served = 0  # batches of this epoch
        self._placed = True  # whether the next loop starts at (epoch, served) or with the next epoch
        self._loops = 0

    def __len__(self) -> int:
        """Batches in an epoch, the same number on every rank."""
        if self._course.batches is None:
            raise TypeError("this loader has no length: its data is an iterable of unknown length")
        return self._course.batches

    def __iter__(self) -> Iterator[Batch]:
        self._begin_loop()
        this_loop, get, batches = self._loops, self._course.get, self._course.batches
        while batches is None or self._served < batches:
            batch = get(self.epoch, self._served)
            self._served += 1
            yield batch
            if self._loops != this_loop:
                raise UsageError("another loop over this loader was started: make one loader for each simultaneous loop")
        self._move(self.epoch + 1, 0)

    def set_epoch(self, epoch: int) -> None:
        """The next loop is this epoch, from its start, or from the place that `load_state_dict` has just set in it."""
        if epoch < 0:
            raise UsageError(f"epoch must be 0 or more, got {epoch}")
        if not (self._placed and epoch == self.epoch):
            self._move(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """The place, and which data, part and seed it belongs to. The state of one rank serves all ranks."""
        ended = self._served == self._course.batches
        place = (self.epoch + 1, 0) if ended else (self.epoch, self._served)
        return {**self._course.mark(*place), **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        identity = self._identity()
        missing = [name for name in ("epoch", "samples", *identity) if name not in state]
        if missing:
            raise UsageError(f"this is not the state of a loader: {missing[0]!r} is missing in {', '.join(map(str, state))}")
        for name, here in identity.items():
            if state[name] != here:
                raise UsageError(_other(name, state[name], here))
        epoch, served = self._course.find(state)
        batches = self._course.batches
        self._move(*((epoch, served) if batches is None or served < batches else (epoch + 1, 0)))

    def stats(self) -> dict[str, Any]:
        """Measurements of the reading: rows/s per thread, share of time spent waiting, threads, depth. Empty if resident."""
        return self._course.stats()

    @property
    def degraded(self) -> list[str]:
        """Problems that did not stop the loader, as sentences."""
        return list(dict.fromkeys([*self._notes, *self._source.degraded, *self._course.degraded]))

    def close(self) -> None:
        """End the threads and write the rows that were read to the cache. The next loop starts the threads again."""
        self._course.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _begin_loop(self) -> None:
        self._loops += 1
        if not self._placed and self._served and self._course.batches is not None:
            self._move(self.epoch + 1, 0)
        self._placed = False

    def _move(self, epoch: int, served: int) -> None:
        self.epoch, self._served, self._placed = epoch, served, True

    def _identity(self) -> dict[str, Any]:
        return {"data": self._data.fingerprint(), "part": self._part, "seed": self._seed}


def _other(name: str, theirs: Any, here: Any) -> str:
    if name == "data":
        return f"the state is of other data: its fingerprint is {theirs}, this data has {here}"
    return f"the state has {name}={theirs!r}, this loader has {name}={here!r}: make the loader with {name}={theirs!r}"


def _as_data(given: Data | Mapping[str, Any] | Sequence[Any]) -> Data:
    if isinstance(given, Data):
        return given
    if isinstance(given, Mapping):
        return arrays(given)
    if isinstance(given, tuple | list) and len(given) == 2:
        return arrays(given[0], given[1])
    raise UsageError(f"data must come from fo.data, or be a dict of columns or a pair (x, y); got {type(given).__name__}")


def _source(data: Data, part: str) -> Source:
    if part not in PARTS:
        raise UsageError(f"unknown part {part!r}; {did_you_mean(part, PARTS)}")
    source = data.parts().get(part)
    if source is None:
        raise DataError(f"part={part!r}: this data has no {part} part; make the data with holdout= or {part}=")
    return source


def _device(device: torch.device | str) -> torch.device:
    if device != "auto":
        return torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _tier(source: Source, device: torch.device, cache: Cache | None) -> str:
    on_host = device.type == "cpu"
    if source.in_memory and on_host:
        return "resident"
    if source.varies:  # its rows must not be kept
        return "streamed"
    host_bytes = free_host_bytes()
    around = Surroundings(
        rows=len(source),
        row_bytes=source.stored_bytes / max(1, len(source)),
        in_memory=source.in_memory,
        device_free_bytes=host_bytes if on_host else torch.get_device_module(device).mem_get_info(device)[0],
        host_free_bytes=host_bytes,
        disk_free_bytes=0 if cache is None else cache.limit_bytes or 0,
        fills=filled_by(source, device) is not None,
        on_host=on_host,
    )
    return choose_tier(around).tier
