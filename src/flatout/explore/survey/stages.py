"""Times each stage of the way of rows to a model, separately, for a part of a second."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from flatout.data.cache.memory import MemoryStore
from flatout.data.data import Data
from flatout.data.feeds.loader import Loader, loader
from flatout.data.order.keyed import Keys, Lookahead
from flatout.data.source import Batch, Source
from flatout.explore.survey.attention import ThreadTime, ThreadWatch, bytes_read
from flatout.measure.clock import Stopwatch

_SHARES = {"reading": 0.3, "keeping": 0.1, "copying": 0.1, "transforms": 0.2, "loader": 0.3}  # share of the seconds to spend
_MOST_ROWS = 50_000_000  # a store has a few bytes for each row of the source
_KEPT_BYTES = 64 << 20
_FEWEST = 3
_WIDER, _MOST_WIDE = 16, 16_384


@dataclass(frozen=True)
class Wider:
    """Picking rows from memory in larger batches."""

    batch: int
    rows_per_s: float


@dataclass(frozen=True)
class ReadingSpeed:
    """One thread, and how it spent its time."""

    rows_per_s: float
    attention: ThreadTime
    own_workers: int | None = None  # processes that read for it: the thread only waits for them
    file_bytes_per_row: float | None = None
    wider: Wider | None = None


@dataclass(frozen=True)
class TransformSpeed:
    """One transform of a batch on the device."""

    name: str
    s_per_row: float


@dataclass(frozen=True)
class LoaderSpeed:
    """The whole loader, in the first epoch and, if there was time, in later ones.

    `workers` threads read ahead; None if nothing is read ahead.
    """

    rows_per_s: float
    tier: str
    workers: int | None = None
    later_rows_per_s: float | None = None


@dataclass(frozen=True)
class Stages:
    """None: there is no such stage, or it can't be timed separately."""

    reading: ReadingSpeed | None
    kept_rows_per_s: float | None  # cached rows, from host memory
    copy_bytes_per_s: float | None
    transforms: tuple[TransformSpeed, ...]
    loading: LoaderSpeed

    @property
    def transform_rows_per_s(self) -> float | None:
        seconds = sum(step.s_per_row for step in self.transforms)
        return 1 / seconds if seconds else None


def measure(
    data: Data, tier: str, batch: int, device: torch.device, seconds: float, *, in_memory: bool, seed: int = 0
) -> Stages:
    """Takes about `seconds`; slow rows are read a few at a time.

    `in_memory`: reading only copies, so caching rows gains nothing.
    """
    source = data.train
    if source.stream is not None:
        return Stages(None, None, None, (), _loading(data, "auto", batch, device, seconds))
    ahead = Lookahead(data.sampler(seed), torch.device("cpu"))
    source.read(ahead.rows(0, 1))  # files are opened, workers start
    first_s = _timed(lambda: source.read(ahead.rows(1, 2)))
    at_once = max(1, min(batch, len(source), int(_SHARES["reading"] * seconds / _FEWEST / max(first_s, 1e-9))))
    reading, rows, columns = _reading(source, ahead, at_once, _SHARES["reading"] * seconds)
    if in_memory:
        reading = _picking(source, ahead, at_once, reading, _SHARES["keeping"] * seconds)
    there = {name: column.to(device) for name, column in columns.items()}
    steps = _transforms(data, there, rows.to(device), seed, _SHARES["transforms"] * seconds)
    copying = None if device.type == "cpu" else _copying(columns, device, _SHARES["copying"] * seconds)
    everything_s = len(source) / reading.rows_per_s
    tier = tier if in_memory or everything_s < seconds / 4 else "streamed"
    loading = _loading(data, tier, at_once if at_once < batch // 2 else batch, device, _SHARES["loader"] * seconds)
    once = in_memory or source.varies  # samples that differ from visit to visit can't be cached
    kept = None if once else _kept(source, rows, columns, _SHARES["keeping"] * seconds)
    return Stages(reading, kept, copying, steps, loading)


def _reading(source: Source, ahead: Lookahead, at_once: int, seconds: float) -> tuple[ReadingSpeed, Tensor, Batch]:
    """Reads in the order of training. Also returns the last rows."""
    before, thread, done = bytes_read(), ThreadWatch(), 0
    with Stopwatch() as watch:
        while True:
            rows = ahead.rows(done, done + at_once)
            columns = source.read(rows)
            done += len(rows)
            if watch.elapsed_s >= seconds:
                break
    attention, after = thread.attention(), bytes_read()
    own = source.workers or None
    per_row = None if before is None or after is None or own else (after - before) / done
    return ReadingSpeed(done / watch.elapsed_s, attention, own, per_row), rows, columns


def _picking(source: Source, ahead: Lookahead, batch: int, reading: ReadingSpeed, seconds: float) -> ReadingSpeed:
    """The median of short calls, and the rate in larger batches, where the cost of a call is small."""
    rates = {}
    for size in (batch, min(_WIDER * batch, len(source), _MOST_WIDE)):
        rates[size] = size / _median_s(partial(source.read, ahead.rows(0, size)), seconds / 2, None)
    wide = max(rates)
    return replace(reading, rows_per_s=rates[batch], wider=Wider(wide, rates[wide]) if wide > batch else None)


def _kept(source: Source, rows: Tensor, columns: Batch, seconds: float) -> float | None:
    if len(source) > _MOST_ROWS or sum(column.nbytes for column in columns.values()) > _KEPT_BYTES:
        return None
    store = MemoryStore(source)
    store.put(rows, columns)
    rows = rows[store.has(rows)]
    return len(rows) / _median_s(lambda: store.read(rows), seconds, None) if len(rows) else None


def _copying(columns: Batch, device: torch.device, seconds: float) -> float:
    pinned = {name: column.pin_memory() for name, column in columns.items()}
    size = sum(column.nbytes for column in columns.values())
    return size / _median_s(lambda: [c.to(device, non_blocking=True) for c in pinned.values()], seconds, device)


def _transforms(data: Data, batch: Batch, rows: Tensor, seed: int, seconds: float) -> tuple[TransformSpeed, ...]:
    steps, transforms = [], data.transforms()
    keys = Keys(seed, torch.zeros_like(rows), rows)
    for transform in transforms:
        written = transform.written()
        name = written if isinstance(written, str) else next(iter(written))
        taken_s = _median_s(partial(transform, batch, keys), seconds / len(transforms), rows.device)
        batch = transform(batch, keys)
        steps.append(TransformSpeed(str(name), taken_s / len(rows)))
    return tuple(steps)


def _loading(data: Data, tier: str, batch: int, device: torch.device, seconds: float) -> LoaderSpeed:
    tier = "streamed" if tier == "mapped" else tier  # the first epoch is the same
    with loader(data, batch, device=device, tier=tier) as batches:
        first = _epochs(batches, 1, device, seconds / 2 if tier == "pinned" else seconds)
        workers = batches.stats().get("workers")
        later = _epochs(batches, 1000, device, seconds / 2) if first.ended and not data.train.in_memory else None
    return LoaderSpeed(first.rows_per_s, tier, workers, None if later is None else later.rows_per_s)


@dataclass(frozen=True)
class _Epochs:
    rows_per_s: float
    ended: bool  # all rows were read before the time was over


def _epochs(batches: Loader, count: int, device: torch.device, seconds: float) -> _Epochs:
    """The first batch is not counted: threads and processes start, buffers are made."""
    stream = chain.from_iterable(batches for _ in range(count))
    first_s = _timed(partial(next, stream, None), device)
    done, ended = 0, True
    with Stopwatch(device) as watch:
        for batch in stream:
            done += _rows_in(batch)
            if watch.elapsed_s >= seconds:
                ended = False
                break
    return _Epochs(done / watch.elapsed_s if done else len(batches) / first_s, ended)


def _rows_in(batch: Batch) -> int:
    return len(batch["y"] if "y" in batch else batch["x"])


def _median_s(call: Callable[[], object], seconds: float, device: torch.device | None) -> float:
    """After a first call, which makes constants and buffers."""
    call()
    taken: list[float] = []
    while len(taken) < _FEWEST or sum(taken) < seconds:
        taken.append(_timed(call, device))
        if len(taken) >= 1 and sum(taken) >= 2 * seconds:
            break
    return statistics.median(taken)


def _timed(call: Callable[[], object], device: torch.device | None = None) -> float:
    with Stopwatch(device) as watch:
        call()
    return max(watch.elapsed_s, 1e-9)
