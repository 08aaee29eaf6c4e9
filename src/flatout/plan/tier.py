"""Where a run's data should be stored, based on the data, this machine, and the speed of the source."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from flatout.data.cache.cache import Cache, disk_bytes
from flatout.data.cache.compression import SAMPLE_BYTES, choose_compression
from flatout.data.cache.mapped import cached_compression, cached_rows
from flatout.data.cache.records import Array, RecordLayout
from flatout.data.cache.tiers import Surroundings
from flatout.data.feeds.resident import filled_by
from flatout.data.feeds.tuning import ReadingBudget
from flatout.data.source import Source
from flatout.engine.job import Job
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.machine.host import free_host_bytes

_TRIED_S = 0.3  # time for reading some rows, to measure the source's speed
_TRIED_ROWS = 32
_SAMPLED_ROWS = 64


def surroundings(
    job: Job,
    device: torch.device,
    ceilings: Ceilings | None,
    *,
    epochs: float | None,
    needed_rows_s: float | None,
    cache: Path | None,
    disk_budget: str = "auto",
) -> Surroundings:
    train = job.data.train
    parts = [train, *([job.data.validation] if job.data.validation is not None else [])]
    on_host = device.type == "cpu"
    return Surroundings(
        rows=len(train),
        row_bytes=sum(part.stored_bytes for part in parts) / max(1, len(train)),
        in_memory=train.in_memory,
        device_free_bytes=free_bytes(device),
        host_free_bytes=free_bytes(torch.device("cpu")),
        disk_free_bytes=disk_bytes(cache, disk_budget),
        fills=filled_by(train, device) is not None,
        on_host=on_host,
        cached=not train.in_memory and cache is not None and _is_cached(train.compact()[0], cache),
        epochs=epochs,
        needed_rows_s=needed_rows_s,
        decode_rows_s=None if train.in_memory else read_rate(train) * ReadingBudget.here().cores,
        disk_bytes_s=_value(ceilings.disk_read_bytes_per_s if ceilings else None),
        link_bytes_s=_value(ceilings.host_to_device_pinned_bytes_per_s if ceilings else None),
    )


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_host_bytes()


def read_rate(source: Source) -> float:
    """Rows per second that one thread reads, measured on rows spread over the whole source."""
    rows = torch.linspace(0, len(source) - 1, min(_TRIED_ROWS, len(source))).to(torch.int64)
    source.read(rows[:1])  # warm-up: load libraries, open files
    began_s, read = time.perf_counter(), 0
    for row in rows.split(4):
        source.read(row)
        read += len(row)
        if time.perf_counter() - began_s > _TRIED_S:
            break
    return read / max(time.perf_counter() - began_s, 1e-9)


def compression_of(source: Source, around: Surroundings, cache: Path, threads: int) -> tuple[str, str]:
    """How rows are written to the cache, and why. A cache that was begun keeps its compression."""
    narrow = source.compact()[0]
    begun = cached_compression(Cache(cache), narrow)
    if begun is not None:
        return begun, "the cache already has rows in this format"
    row_bytes = RecordLayout.of(narrow.schema).row_bytes
    return choose_compression(around, row_bytes, lambda: sample_rows(narrow), threads or ReadingBudget.here().cores)


def sample_rows(source: Source) -> Array:
    """A few rows spread over the whole source, as stored in the cache: at most 4 MB, read in a fraction of a second."""
    layout = RecordLayout.of(source.schema)
    count = min(_SAMPLED_ROWS, len(source), max(1, int(SAMPLE_BYTES / max(1.0, layout.row_bytes))))
    content = [np.zeros(0, np.uint8)]
    began_s = time.perf_counter()
    for rows in torch.linspace(0, len(source) - 1, count).to(torch.int64).split(4):
        content.append(layout.content(source.read(rows)))
        if time.perf_counter() - began_s > _TRIED_S:
            break
    return np.concatenate(content)[:SAMPLE_BYTES]


def _is_cached(source: Source, folder: Path) -> bool:
    """Whether an earlier run cached all rows."""
    return cached_rows(Cache(folder), source) == len(source)


def _value(measured: MeasuredRate | None) -> float | None:
    return None if measured is None else measured.value
