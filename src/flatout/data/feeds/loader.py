"""Batches on a device for anyone's own loop: `for batch in fo.loader(data, 1024): ...` is one epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeGuard

import torch

from flatout.base.errors import DataError, UsageError, did_you_mean
from flatout.data.cache.cache import Cache, disk_bytes
from flatout.data.cache.device import DeviceStore, filled_by
from flatout.data.cache.filling import place
from flatout.data.cache.tiers import Surroundings, choose_tier
from flatout.data.data import PARTS, Data
from flatout.data.feeds.contract import Feed
from flatout.data.feeds.courses import BucketCourse, Course, RowCourse, StreamCourse, rows_by_length
from flatout.data.feeds.pinned import PinnedFeed
from flatout.data.feeds.ranks import Share, rank_and_world
from flatout.data.feeds.resident import ResidentFeed
from flatout.data.feeds.streamed import IterableFeed
from flatout.data.order.order import Sampler, Sequential
from flatout.data.source import Batch, Source
from flatout.data.sources.arrays import arrays
from flatout.machine.host import free_host_bytes

TIERS = ("auto", "resident", "pinned", "mapped", "streamed")


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
    """Shuffled batches of `data`, prepared and augmented: a dict of tensors on `device` each.

    `data` is what fo.data makes, or columns in a dict (`{"x": ..., "y": ...}`), or a pair (x, y). `batch` is per process: of
    several, started by torchrun or told `rank` and `world`, each gets its part of the batches of batch * world rows that one
    process would see. An epoch that does not divide ends with a short batch, filled up with the epoch's first rows where
    ranks would get unequal parts, or without it with `drop_last`. Validation and test come in the order they are stored.

    `tier` is where rows are kept: "resident" on the device, "pinned" in host memory, "mapped" in the folder `cache`,
    "streamed" nowhere. A run with the same `cache` reads what a loader has kept there, and the other way round. It takes at
    most `disk_budget`, by default half of what it and the free space are, and is written as `cache_compression` says. `workers`
    threads read what is not in memory ahead of its use, `prefetch` batches of it, by default as many as it turns out to take.
    With `tokens`, sequences of differing lengths come in batches of at most so many tokens, padding included, and at most
    `batch` rows.
    """
    if not isinstance(batch, int) or batch < 1:
        raise UsageError(f"batch is a number of rows, 1 or more, got {batch!r}")
    if tier not in TIERS:
        raise UsageError(f"unknown tier {tier!r}; {did_you_mean(tier, TIERS)}")
    _check_reading(workers, prefetch)
    whole = _as_data(data)
    source = _source(whole, part)
    where = _device(device)
    own_rank, ranks = rank_and_world(rank, world)
    transforms = whole.transforms() if part == "train" else whole.prepare
    if tokens is None and part == "train":
        tokens = source.batch_tokens
    said: list[str] = []
    course: Course
    if source.stream is not None:
        if ranks > 1 or tokens is not None:
            raise UsageError("an iterable keeps its own order: give each process one of its own, with world=1 and no tokens")
        feed: Feed = IterableFeed(source, batch, where, transforms=transforms, seed=seed)
        course = StreamCourse(feed, source.stream.length, batch, drop_last)
    elif tokens is not None:
        course = BucketCourse(rows_by_length(source), batch, tokens, where, transforms, seed, own_rank, ranks)
    else:
        sampler = whole.sampler(seed) if part == "train" else Sequential(len(source))
        share = Share(sampler, batch, own_rank, ranks, drop_last)
        order: Sampler = share if ranks > 1 or drop_last else sampler
        kept = None if cache is None else Cache(Path(cache), disk_bytes(Path(cache), disk_budget), cache_compression)
        tier = _tier(source, where, kept) if tier == "auto" else tier
        placed = filled_by(source, where) if tier == "resident" else None
        if tier == "resident" and placed is None:
            feed = ResidentFeed(source, order, batch, where, transforms=transforms, seed=seed)
        else:
            narrow, widen = source.compact()
            source, transforms = place(narrow, tier, kept), (*widen, *transforms)
            feed = PinnedFeed(
                source,
                order,
                batch,
                where,
                transforms=transforms,
                seed=seed,
                workers=workers,
                depth=None if prefetch == "auto" else prefetch,  # type: ignore[arg-type]  # other words are refused
                epoch_rows=share.epoch_rows,
                kept=None if placed is None else DeviceStore(placed, where),
            )
        course = RowCourse(feed, share, batch, ranks)
        if kept is not None and (too_much := kept.trim()):  # now that what it uses is open
            said.append(too_much)
    return Loader(whole, source, course, part, seed, said)


class Loader:
    """Iterate for an epoch; again for the next one, in a new order. A loop that was left early is not gone on with.

    `state_dict()` at any point of a loop is the same on every rank, and `load_state_dict` of it makes the next loop go on with
    the batch after. Threads that read ahead end with `close()`, at the end of a `with`, or when the loader is forgotten.
    """

    def __init__(self, data: Data, source: Source, course: Course, part: str, seed: int, said: Sequence[str] = ()) -> None:
        self.epoch = 0
        self._said = tuple(said)  # what was wrong from the start
        self._data, self._source, self._course, self._part, self._seed = data, source, course, part, seed
        self._served = 0  # batches of this epoch
        self._placed = True  # whether the next loop starts at (epoch, served), or with the epoch after
        self._loops = 0

    def __len__(self) -> int:
        """Batches of an epoch, as many on every rank."""
        if self._course.batches is None:
            raise TypeError("this loader has no length: its data is an iterable that does not tell where it ends")
        return self._course.batches

    def __iter__(self) -> Iterator[Batch]:
        self._begin_loop()
        this_loop, get, batches = self._loops, self._course.get, self._course.batches
        while batches is None or self._served < batches:
            batch = get(self.epoch, self._served)
            self._served += 1
            yield batch
            if self._loops != this_loop:
                raise UsageError("another loop over this loader was begun: make a loader for each loop that runs at a time")
        self._move(self.epoch + 1, 0)

    def set_epoch(self, epoch: int) -> None:
        """The next loop is this epoch, from its start; or from where `load_state_dict` has just put it in this epoch."""
        if epoch < 0:
            raise UsageError(f"epochs count from 0, got {epoch}")
        if not (self._placed and epoch == self.epoch):
            self._move(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Numbers of the place, and what they are about. A checkpoint of one rank serves all."""
        ended = self._served == self._course.batches
        place = (self.epoch + 1, 0) if ended else (self.epoch, self._served)
        return {**self._course.mark(*place), **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        identity = self._identity()
        missing = [name for name in ("epoch", "samples", *identity) if name not in state]
        if missing:
            raise UsageError(f"this is no state of a loader: it has no {missing[0]!r}, only {', '.join(map(str, state))}")
        for name, here in identity.items():
            if state[name] != here:
                raise UsageError(_other(name, state[name], here))
        epoch, served = self._course.find(state)
        batches = self._course.batches
        self._move(*((epoch, served) if batches is None or served < batches else (epoch + 1, 0)))

    def stats(self) -> dict[str, Any]:
        """Of the reading: rows/s a thread, the share of the time spent waiting, threads, depth. Empty for resident data."""
        return self._course.stats()

    @property
    def degraded(self) -> list[str]:
        """What is not as it should be, in words."""
        return [*self._said, *self._source.degraded, *self._course.degraded]

    def close(self) -> None:
        """End the threads, and keep what was read where a cache outlives this. A next loop starts them again."""
        self._course.close()
        self._source.release()

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
        return f"the state is of other data (fingerprint {theirs}, and of this data {here}): its place means nothing here"
    return f"the state is of {name}={theirs!r}, and this loader has {name}={here!r}: make the loader with {name}={theirs!r}"


def _as_data(given: Data | Mapping[str, Any] | Sequence[Any]) -> Data:
    if isinstance(given, Data):
        return given
    if isinstance(given, Mapping):
        return arrays(given)
    if isinstance(given, tuple | list) and len(given) == 2:
        return arrays(given[0], given[1])
    raise UsageError(f"data is what fo.data makes, a dict of columns, or a pair (x, y); got {type(given).__name__}")


def _check_reading(workers: object, prefetch: object) -> None:
    """Also where nothing is read ahead: a mistake is one on every machine."""
    if workers != "auto" and not (_is_whole(workers) and workers >= 0):
        raise UsageError(f"workers is 'auto' or a number of reading threads, 0 for none, got {workers!r}")
    if prefetch != "auto" and not (_is_whole(prefetch) and prefetch >= 1):
        hint = "; for as many as it turns out to take say 'auto'" if _is_whole(prefetch) and prefetch == 0 else ""
        raise UsageError(f"prefetch is 'auto' or a number of batches to read ahead, 1 or more, got {prefetch!r}{hint}")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _source(data: Data, part: str) -> Source:
    if part not in PARTS:
        raise UsageError(f"unknown part {part!r}; {did_you_mean(part, PARTS)}")
    source = data.parts().get(part)
    if source is None:
        raise DataError(f"part={part!r}: this data has no {part} part; make it with holdout= or {part}=")
    return source


def _device(device: torch.device | str) -> torch.device:
    if device != "auto":
        return torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _tier(source: Source, device: torch.device, cache: Cache | None) -> str:
    on_host = device.type == "cpu"
    if source.in_memory and on_host:
        return "resident"
    if source.varies:  # what was read once is not to be served again
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
