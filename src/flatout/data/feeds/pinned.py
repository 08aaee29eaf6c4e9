"""Rows are read on the host by several threads, ahead of their use, and copied to the device on a separate stream.

The number of threads and batches ahead never changes which rows make a batch.
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
from flatout.data.feeds.contract import CapturableFeed, FeedOptions
from flatout.data.feeds.transfer import SentBatch
from flatout.data.feeds.tuning import ReadingBudget, Tuner, depth_for
from flatout.data.feeds.uplink import BatchPiece, Span, Uplink, next_sent, piece_rows
from flatout.data.order.keyed import Keys, Sampler
from flatout.data.source import Batch, Source, apply, describe_all


class PinnedFeed(CapturableFeed):
    """Serves the same batches as a resident feed. On a CPU, rows in memory are read when they are asked for.

    `kept`: rows stay on the device after their first copy and are not read again. `moved`: why the requested tier does not
    serve them. `budget`: the cores and the memory that reading may use; by default those of this machine.
    """

    def __init__(
        self,
        source: Source,
        sampler: Sampler,
        options: FeedOptions,
        *,
        kept: DeviceStore | None = None,
        moved: Sequence[str] = (),
        budget: ReadingBudget | None = None,
    ) -> None:
        self.batch = options.batch
        self.position = 0
        self._source, self._moved = source, tuple(moved)
        self._device = options.device
        self._transforms = options.transforms
        self._seed = options.seed
        self._epoch_rows = options.epoch_rows
        self._tuner: Tuner | None = None
        self._pieces = -(-self.batch // piece_rows(source, self.batch))
        self.workers, self.depth = self._sizes(options.workers, options.depth, budget)
        self._by_readers = bool(self._transforms) and self._device.type != "cpu"
        finish = self._transformed if self._by_readers else None
        self._uplink = Uplink(source, sampler, self.batch, self._device, max(1, self.workers), finish, kept)
        self._ahead: Ahead[BatchPiece, BatchPiece] | None = None
        self._past = Counters()
        self._static: Batch | None = None
        self._began_s: float | None = None
        self._rehearse()

    @property
    def degraded(self) -> list[str]:
        return [*self._moved, *self._uplink.transfer.degraded, *self._source.degraded]

    @property
    def moved(self) -> Sequence[str]:
        return self._moved

    def next(self, size: int | None = None) -> Batch:
        """The batch at `position`, which moves on by its size. The host waits only when the data is not there yet."""
        size = self.batch if size is None else size
        sent = self._fetch(size)
        self._uplink.transfer.receive(sent)
        self.position += size
        if not self._transforms or self._by_readers:
            return sent.columns
        return self._transformed(sent.columns, sent.rows, sent.visits)

    def load(self) -> None:
        """Allocate the buffers of `capture_next`, once. Threads stop, because the capture would record their work."""
        if self._static is None:
            position = self.position
            self._static = {name: torch.empty_like(column).copy_(column) for name, column in self.next().items()}
            self.seek(position)
        self.close()

    def capture_next(self) -> Batch:
        """The batch that `bring` copied. Its address never changes, so a graph can hold it."""
        if self._static is None:
            raise UsageError("call load() before capture_next(): it makes the buffers that the graph reads its batch from")
        return self._static

    def bring(self) -> None:
        """Copy the next batch to where the graph reads it. Call before each replay; the host waits as in `next`."""
        assert self._static is not None
        for name, column in self.next().items():
            self._static[name].copy_(column)

    def replayed(self) -> None:
        """Nothing to do: `bring` has moved the position."""

    def seek(self, position: int) -> None:
        if position != self.position:
            self.close()
        self.position = position

    def close(self) -> None:
        """Stop reading ahead. `next` starts it again."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            self._past = _sum(self._past, ahead.counters)
            ahead.close()
            self._uplink.forget()

    def release(self) -> None:
        self.close()
        self._source.release()

    def stats(self) -> dict[str, Any]:
        """Measurements of the reading so far. `wait_share` is the share of the time that the consumer waited for batches."""
        link, copies, now = self._uplink, self._uplink.transfer, self._past
        if self._ahead is not None:
            now = _sum(now, self._ahead.counters)
        elapsed_s = 0.0 if self._began_s is None else time.perf_counter() - self._began_s
        wait_s = now.wait_s if self.workers else link.read_s
        return {
            "rows_read": link.rows_read,
            "read_rows_per_s_per_thread": link.rows_read / link.read_s if link.read_s else None,
            "copy_bytes_per_s": copies.copied_bytes / copies.copy_s if copies.copy_s else None,
            "wait_s": wait_s,
            "wait_share": min(1.0, wait_s / elapsed_s) if elapsed_s else 0.0,
            "idle_s": now.room_wait_s,
            "workers": self.workers,
            "depth": -(-self.depth // self._pieces),
            "buffer_bytes": copies.buffer_bytes,
            "changes": [] if self._tuner is None else [asdict(change) for change in self._tuner.history],
        }

    def _fetch(self, size: int) -> SentBatch:
        if size > self.batch:
            raise UsageError(f"next(size={size}): the buffers hold batches of {self.batch}; make the feed with a larger batch")
        if self._began_s is None:
            self._began_s = time.perf_counter()
        wanted = self.position, self.position + size
        if self.workers == 0 or next(self._spans()) != wanted:
            self.close()  # an odd size, as at the end of a budget: the batches read ahead start elsewhere
            return self._uplink.send(wanted)
        if self._ahead is None:
            self._start()
        assert self._ahead is not None
        span, sent = next_sent(self._ahead)
        if span != wanted:  # Ctrl-C came after a batch had arrived and before it was used, and was caught: start again here
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

    def _sizes(self, workers: int | None, depth: int | None, budget: ReadingBudget | None) -> tuple[int, int]:
        """Threads and depth to start with. If the number of threads is free, a tuner changes it from there."""
        source, set_depth = self._source, depth * self._pieces if depth else None
        fixed = fixed_threads(source, self._device)
        if source.alone:
            workers = 0
        elif workers is None and fixed is not None:
            workers = 1 if fixed == 0 and set_depth else fixed
        if workers is not None:
            return workers, set_depth or depth_for(max(1, workers), self._pieces)
        made = describe_all(self._transforms, source.schema)
        row_bytes = max(sum(column.row_bytes for column in columns.values()) for columns in (source.schema, made))
        tuner = self._tuner = Tuner(budget or self._budget(), self.batch * row_bytes, self._pieces, depth=set_depth)
        workers = first_threads(source, self._device, tuner.most)
        return workers, tuner.depth_of(workers)

    def _budget(self) -> ReadingBudget:
        """Batches that are ready are on the device: they may take an eighth of its free memory."""
        budget = ReadingBudget.here()
        if self._device.type == "cuda":
            budget = replace(budget, memory_bytes=min(budget.memory_bytes, torch.cuda.mem_get_info(self._device)[0] // 8))
        return budget

    def _transformed(self, columns: Batch, rows: Tensor, visits: Tensor) -> Batch:
        return apply(self._transforms, columns, Keys(self._seed, visits, rows))

    def _rehearse(self) -> None:
        """Puts the constants of transforms on the device and compiles kernels before several threads use them."""
        if not self._transforms:
            return
        source = self._source
        first = {name: column.to(self._device) for name, column in source.read(torch.zeros(1, dtype=torch.int64)).items()}
        rows = self.batch if self._by_readers else 1  # copies of one row; in a ragged column all have the same start
        for name, column in source.schema.items():
            if column.ragged is None:
                first[name] = first[name].expand(rows, *column.shape).contiguous()
        none = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self._transformed(first, none, none)
        self._uplink.transfer.follow()


def fixed_threads(source: Source, device: torch.device) -> int | None:
    """The number of threads for a source that more threads make no faster. None: it has to be found."""
    if source.alone or (source.in_memory and device.type == "cpu"):
        return 0
    return 2 if source.workers else None  # its workers read; one batch is handed over while the next is read


def first_threads(source: Source, device: torch.device, most: Callable[[float], int]) -> int:
    """Threads to start with. `most` gives the limit for the share of its time that the training thread is busy."""
    if source.in_memory:
        return 1
    # With a GPU one core must stay free to launch kernels; on a CPU all threads share the cores
    return most(0.0 if device.type == "cpu" else 1.0)


def spans(start: int, end: int | None, batch: int) -> Iterator[Span]:
    """[start, stop) of one batch after the other. The last batch before `end` may be short."""
    while end is None or start < end:
        stop = start + batch if end is None else min(start + batch, end)
        yield start, stop
        start = stop


def epoch_spans(start: int, epoch_rows: int, batch: int) -> Iterator[Span]:
    """Endless. The last batch of each epoch may be short."""
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
