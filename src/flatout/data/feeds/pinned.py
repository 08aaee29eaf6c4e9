"""Rows are read on the host by several threads, ahead of their use, and copied to the device on a stream of their own.

How many threads read and how far ahead changes nothing about what is served: which rows make a batch is fixed before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.cache.device import DeviceStore
from flatout.data.feeds.ahead import Ahead, Counters
from flatout.data.feeds.contract import CapturableFeed
from flatout.data.feeds.tuning import ReadingBudget, Tuner, depth_for
from flatout.data.feeds.uplink import BatchPiece, SentBatch, Span, Uplink, next_sent, piece_rows
from flatout.data.order.keyed import Keys
from flatout.data.order.order import Sampler
from flatout.data.source import Batch, Source
from flatout.data.transforms import Transform, apply, describe_all


class PinnedFeed(CapturableFeed):
    """Serves the same batches as a resident feed. On a CPU, what is in memory already is read when asked for.

    `workers` reading threads, or "auto": as many as it turns out to take. 0: none, every batch is read when asked for.
    `depth` batches are read ahead; by default as many as that turns out to take.
    `epoch_rows`: no batch crosses a multiple of it; the one before is short, and `next` is to be asked for its size.
    `kept`: rows stay on the device once they were copied there, and are not read again.
    """

    def __init__(
        self,
        source: Source,
        sampler: Sampler,
        batch: int,
        device: torch.device | str,
        *,
        transforms: Sequence[Transform] = (),
        seed: int = 0,
        workers: int | str = "auto",
        depth: int | None = None,
        budget: ReadingBudget | None = None,
        epoch_rows: int | None = None,
        kept: DeviceStore | None = None,
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch must be 1 or more, got {batch}")
        if workers != "auto" and (not isinstance(workers, int) or workers < 0):
            raise UsageError(f"workers is 'auto' or a number of reading threads, 0 for none, got {workers!r}")
        if depth is not None and (not isinstance(depth, int) or depth < 1):
            raise UsageError(f"prefetch is 'auto' or a number of batches to read ahead, 1 or more, got {depth!r}")
        self.batch = batch
        self.position = 0
        self._device = torch.device(device)
        self._transforms = tuple(transforms)
        self._seed = seed
        self._epoch_rows = epoch_rows
        self._tuner: Tuner | None = None
        self._pieces = -(-batch // piece_rows(source, batch))
        self.workers, self.depth = self._sizes(source, workers, depth, budget)
        self._by_readers = bool(transforms) and self._device.type != "cpu"
        finish = self._transformed if self._by_readers else None
        self._uplink = Uplink(source, sampler, batch, self._device, max(1, self.workers), finish, kept)
        self._ahead: Ahead[BatchPiece, BatchPiece] | None = None
        self._past = Counters()
        self._static: Batch | None = None
        self._began_s: float | None = None
        self._rehearse(source)

    @property
    def degraded(self) -> list[str]:
        return self._uplink.degraded

    def next(self, size: int | None = None) -> Batch:
        """The batch at `position`, which moves on by its size. The host waits only when the data is not there yet."""
        size = self.batch if size is None else size
        sent = self._fetch(size)
        self._uplink.receive(sent)
        self.position += size
        if not self._transforms or self._by_readers:
            return sent.columns
        return self._transformed(sent.columns, sent.rows, sent.visits)

    def load(self) -> None:
        """Make fixed places for `capture_next`, once. Threads stop: what they do on a device would end up in the capture."""
        if self._static is None:
            position = self.position
            self._static = {name: torch.empty_like(column).copy_(column) for name, column in self.next().items()}
            self.seek(position)
        self.close()

    def capture_next(self) -> Batch:
        """What `bring` brought: a graph can hold it, as its place never changes."""
        if self._static is None:
            raise UsageError("call load() before capture_next(): the graph reads its batch from places made there")
        return self._static

    def bring(self) -> None:
        """Put the next batch where a graph looks for it. Call before each replay; the host waits as in `next`."""
        assert self._static is not None
        for name, column in self.next().items():
            self._static[name].copy_(column)

    def replayed(self) -> None:
        """`bring` has moved on already."""

    def seek(self, position: int) -> None:
        if position != self.position:
            self.close()
        self.position = position

    def close(self) -> None:
        """Stop working ahead; `next` starts again."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            self._past = _sum(self._past, ahead.counters)
            ahead.close()
            self._uplink.forget()

    def stats(self) -> dict[str, Any]:
        """What reading has taken so far. `wait_share` is the part of the time that whoever asks for batches stood waiting."""
        link, now = self._uplink, self._past
        if self._ahead is not None:
            now = _sum(now, self._ahead.counters)
        elapsed_s = 0.0 if self._began_s is None else time.perf_counter() - self._began_s
        wait_s = now.wait_s if self.workers else link.read_s
        return {
            "rows_read": link.rows_read,
            "read_rows_per_s_per_thread": link.rows_read / link.read_s if link.read_s else None,
            "copy_bytes_per_s": link.copied_bytes / link.copy_s if link.copy_s else None,
            "wait_s": wait_s,
            "wait_share": min(1.0, wait_s / elapsed_s) if elapsed_s else 0.0,
            "idle_s": now.room_wait_s,
            "workers": self.workers,
            "depth": -(-self.depth // self._pieces),
            "buffer_bytes": link.buffer_bytes,
            "changes": [] if self._tuner is None else [asdict(change) for change in self._tuner.history],
        }

    def _fetch(self, size: int) -> SentBatch:
        if size > self.batch:
            raise UsageError(f"next(size={size}): the buffers hold batches of {self.batch}; make the feed with a larger batch")
        if self._began_s is None:
            self._began_s = time.perf_counter()
        wanted = self.position, self.position + size
        if self.workers == 0 or next(self._spans()) != wanted:
            self.close()  # an odd size, as at the end of a budget: what was prepared does not start where the next batch will
            return self._uplink.send(wanted)
        if self._ahead is None:
            self._start()
        assert self._ahead is not None
        sent = next_sent(self._ahead)
        if sent.span != wanted:  # Ctrl-C came between a batch's arrival and its use, and was caught: begin again from here
            self.close()
            return self._fetch(size)
        if self._tuner is not None and self._tuner.look(self._ahead):
            self.workers, self.depth = self._ahead.workers, self._ahead.depth
            self._uplink.resize(self.workers)
        return sent

    def _start(self) -> None:
        self._ahead = Ahead(self._uplink.carry, self._uplink.pieces(self._spans()), self.depth, self.workers)
        if self._tuner is not None:
            self._tuner.begin(self._ahead)

    def _spans(self) -> Iterator[Span]:
        if self._epoch_rows is None:
            return spans(self.position, None, self.batch)
        return epoch_spans(self.position, self._epoch_rows, self.batch)

    def _sizes(self, source: Source, workers: int | str, depth: int | None, budget: ReadingBudget | None) -> tuple[int, int]:
        """Threads and depth to start with; where threads are ours to choose, a tuner goes on from there."""
        pinned = depth * self._pieces if depth else None
        fixed = fixed_threads(source, self._device)
        if source.alone:
            workers = 0
        elif workers == "auto" and fixed is not None:
            workers = 1 if fixed == 0 and pinned else fixed
        if isinstance(workers, int):
            return workers, pinned or depth_for(max(1, workers), self._pieces)
        made = describe_all(self._transforms, source.schema)
        row_bytes = max(sum(column.row_bytes for column in columns.values()) for columns in (source.schema, made))
        tuner = self._tuner = Tuner(budget or self._budget(), self.batch * row_bytes, self._pieces, depth=pinned)
        workers = first_threads(source, self._device, tuner.most)
        return workers, tuner.depth_of(workers)

    def _budget(self) -> ReadingBudget:
        """Batches that are ready wait on the device: of its memory they may take an eighth of what is free."""
        budget = ReadingBudget.here()
        if self._device.type == "cuda":
            budget = replace(budget, memory_bytes=min(budget.memory_bytes, torch.cuda.mem_get_info(self._device)[0] // 8))
        return budget

    def _transformed(self, columns: Batch, rows: Tensor, visits: Tensor) -> Batch:
        return apply(self._transforms, columns, Keys(self._seed, visits, rows))

    def _rehearse(self, source: Source) -> None:
        """Constants of transforms are on the device, and kernels compiled, before readers come to it, several at a time."""
        if not self._transforms:
            return
        first = {name: column.to(self._device) for name, column in source.read(torch.zeros(1, dtype=torch.int64)).items()}
        rows = self.batch if self._by_readers else 1  # one over and over; of a ragged column all look at the same part
        for name, column in source.schema.items():
            if column.ragged is None:
                first[name] = first[name].expand(rows, *column.shape).contiguous()
        none = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self._transformed(first, none, none)
        self._uplink.follow()


def fixed_threads(source: Source, device: torch.device) -> int | None:
    """For a source that no number of threads makes quicker; None: it depends."""
    if source.alone or (source.in_memory and device.type == "cpu"):
        return 0
    return 2 if source.workers else None  # its own read; one batch is handed over while the next is read


def first_threads(source: Source, device: torch.device, most: Callable[[float], int]) -> int:
    """To start with. `most`: by the share of its time that the thread which trains is busy."""
    if source.in_memory:
        return 1
    # Beside a GPU one core launches kernels, and who keeps it from that holds up everything; on a CPU all share the work
    return most(0.0 if device.type == "cpu" else 1.0)


def spans(start: int, end: int | None, batch: int) -> Iterator[Span]:
    """[start, stop) of one batch after the other; the last one before `end` may be short."""
    while end is None or start < end:
        stop = start + batch if end is None else min(start + batch, end)
        yield start, stop
        start = stop


def epoch_spans(start: int, epoch_rows: int, batch: int) -> Iterator[Span]:
    """Without end; the last of each epoch may be short."""
    while True:
        end = (start // epoch_rows + 1) * epoch_rows
        yield from spans(start, end, batch)
        start = end


def _sum(first: Counters, second: Counters) -> Counters:
    return Counters(
        first.delivered + second.delivered,
        first.making_s + second.making_s,
        first.room_wait_s + second.room_wait_s,
        first.wait_s + second.wait_s,
    )
