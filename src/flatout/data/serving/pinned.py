"""Rows are read on the host by several threads, ahead of their use, and copied to the device on a stream of their own.

How many threads read and how far ahead changes nothing about what is served: which rows make a batch is fixed before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.keyed import Keys
from flatout.data.order import Sampler
from flatout.data.serving.ahead import Ahead, Counters
from flatout.data.serving.lookahead import Lookahead
from flatout.data.serving.slots import Slot, Slots
from flatout.data.serving.tuning import SPARE, Budget, Tuner
from flatout.data.source import Batch, Column, Source
from flatout.data.transforms import Transform, apply

Span = tuple[int, int]

_HOST = torch.device("cpu")
_NUMBERS = Column(torch.int64, ())
_ROWS, _VISITS = "<rows>", "<visits>"  # beside the columns in a slot


@dataclass(frozen=True)
class Planned:
    """A batch that is still to be read."""

    span: Span
    rows: Tensor
    visits: Tensor


@dataclass(frozen=True)
class Sent:
    """A batch on its way: its tensors may be used once the stream has passed `copied` (None: they never left the host)."""

    columns: Batch
    rows: Tensor
    visits: Tensor
    copied: Any
    span: Span


class Uplink:
    """Sends rows of a source to a device through reused pinned buffers. Any number of threads may `carry` at a time."""

    def __init__(self, source: Source, sampler: Sampler, batch: int, device: torch.device, workers: int = 1) -> None:
        self.rows_read, self.read_s, self.copied_bytes, self.copy_s = 0, 0.0, 0, 0.0
        self._source = source
        self._ahead = Lookahead(sampler, _HOST)
        self._device = device
        self._lock = threading.Lock()
        self._ragged = any(column.ragged is not None for column in source.schema.values())
        self._read_visits = getattr(source, "read_visits", None)  # of sources whose samples differ from visit to visit
        self._read_with = getattr(source, "read_with", None)  # of those that write to any place they are told
        self._slots: Slots | None = None
        if device.type != "cpu":
            self._module = torch.get_device_module(device)
            self._stream = self._module.Stream(device)
            self._slots = Slots({**source.schema, _ROWS: _NUMBERS, _VISITS: _NUMBERS}, batch, workers + SPARE)

    @property
    def degraded(self) -> list[str]:
        return [] if self._slots is None else self._slots.degraded

    @property
    def buffer_bytes(self) -> int:
        return 0 if self._slots is None else self._slots.nbytes

    def resize(self, workers: int) -> None:
        if self._slots is not None:
            self._slots.resize(workers + SPARE)

    def send(self, span: Span) -> Sent:
        return self.carry(self.plan(span))

    def plan(self, span: Span) -> Planned:
        """Cheap, and best called in order: rows are made by the 64k."""
        with self._lock:
            return Planned(span, self._ahead.rows(*span), self._ahead.visits(*span))

    def carry(self, planned: Planned) -> Sent:
        if self._slots is None:
            began_s = time.perf_counter()
            columns = self._read(planned)
            self._count(len(planned.rows), time.perf_counter() - began_s)
            return Sent(columns, planned.rows, planned.visits, None, planned.span)
        slot = self._slots.borrow()
        try:
            return self._through(slot, planned)
        finally:
            self._slots.give_back(slot)

    def receive(self, sent: Sent) -> None:
        """Order the current stream after the copy; the host does not wait."""
        if sent.copied is None:
            return
        current = self._module.current_stream(self._device)
        current.wait_event(sent.copied)
        for tensor in (*sent.columns.values(), sent.rows, sent.visits):
            tensor.record_stream(current)  # made on the side stream: its memory is not reused before this one is done

    def _through(self, slot: Slot, planned: Planned) -> Sent:
        copied_bytes, copy_s = slot.copied_bytes, 0.0
        if slot.copied is not None:
            copy_s = slot.began.elapsed_time(slot.copied) / 1e3
        began_s = time.perf_counter()
        filled = self._read_into(slot, planned)
        filled[_ROWS] = slot.take(_ROWS, len(planned.rows)).copy_(planned.rows)
        filled[_VISITS] = slot.take(_VISITS, len(planned.rows)).copy_(planned.visits)
        self._count(len(planned.rows), time.perf_counter() - began_s, copied_bytes, copy_s)
        with self._module.stream(self._stream):
            slot.began = self._event()
            uploaded = {name: column.to(self._device, non_blocking=True) for name, column in filled.items()}
            slot.copied = self._event()
        slot.copied_bytes = sum(column.nbytes for column in filled.values())
        rows, visits = uploaded.pop(_ROWS), uploaded.pop(_VISITS)
        return Sent(uploaded, rows, visits, slot.copied, planned.span)

    def _read(self, planned: Planned) -> Batch:
        if self._read_visits is not None:
            columns: Batch = self._read_visits(planned.rows, planned.visits)
            return columns
        return self._source.read(planned.rows)

    def _read_into(self, slot: Slot, planned: Planned) -> Batch:
        if self._read_with is not None:
            return dict(self._read_with(planned.rows, slot.take))
        if self._read_visits is not None or self._ragged:  # how long ragged columns are is known once they are read
            return {name: slot.take(name, len(column)).copy_(column) for name, column in self._read(planned).items()}
        columns = {name: slot.take(name, len(planned.rows)) for name in self._source.schema}
        self._source.read_into(planned.rows, columns)
        return columns

    def _event(self) -> Any:
        return self._stream.record_event(self._module.Event(enable_timing=True))

    def _count(self, rows: int, read_s: float, copied_bytes: int = 0, copy_s: float = 0.0) -> None:
        with self._lock:
            self.rows_read += rows
            self.read_s += read_s
            self.copied_bytes += copied_bytes
            self.copy_s += copy_s


class PinnedFeed:
    """Serves the same batches as a resident feed. On a CPU, what is in memory already is read when asked for.

    `workers` reading threads, or "auto": as many as it turns out to take. 0: none, every batch is read when asked for.
    `epoch_rows`: no batch crosses a multiple of it; the one before is short, and `next` is to be asked for its size.
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
        budget: Budget | None = None,
        epoch_rows: int | None = None,
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch must be 1 or more, got {batch}")
        if workers != "auto" and (not isinstance(workers, int) or workers < 0):
            raise UsageError(f"workers is 'auto' or a number of reading threads, 0 for none, got {workers!r}")
        self.batch = batch
        self.position = 0
        self._device = torch.device(device)
        self._transforms = tuple(transforms)
        self._seed = seed
        self._epoch_rows = epoch_rows
        self._tuner: Tuner | None = None
        self.workers, self.depth = self._sizes(source, workers, depth, budget)
        self._uplink = Uplink(source, sampler, batch, self._device, max(1, self.workers))
        self._ahead: Ahead[Planned, Sent] | None = None
        self._past = Counters()
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
        if not self._transforms:
            return sent.columns
        return apply(self._transforms, sent.columns, Keys(self._seed, sent.visits, sent.rows))

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
            "depth": self.depth,
            "buffer_bytes": link.buffer_bytes,
            "changes": [] if self._tuner is None else [asdict(change) for change in self._tuner.history],
        }

    def _fetch(self, size: int) -> Sent:
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
        sent = next(self._ahead)
        if sent.span != wanted:  # Ctrl-C came between a batch's arrival and its use, and was caught: begin again from here
            self.close()
            return self._fetch(size)
        if self._tuner is not None and self._tuner.look(self._ahead):
            self.workers, self.depth = self._ahead.workers, self._ahead.depth
            self._uplink.resize(self.workers)
        return sent

    def _start(self) -> None:
        self._ahead = Ahead(self._uplink.carry, map(self._uplink.plan, self._spans()), self.depth, self.workers)
        if self._tuner is not None:
            self._tuner.begin(self._ahead)

    def _spans(self) -> Iterator[Span]:
        if self._epoch_rows is None:
            return spans(self.position, None, self.batch)
        return epoch_spans(self.position, self._epoch_rows, self.batch)

    def _sizes(self, source: Source, workers: int | str, depth: int | None, budget: Budget | None) -> tuple[int, int]:
        """Threads and depth to start with; where both are ours to choose, a tuner goes on from there."""
        if getattr(source, "alone", False) or (workers == "auto" and source.in_memory and self._device.type == "cpu"):
            workers = 0
        elif workers == "auto" and getattr(source, "workers", None):
            workers = 2  # it has workers of its own: one batch is read while the one before is handed over
        if isinstance(workers, int):
            return workers, depth or max(1, workers) + SPARE
        row_bytes = sum(column.row_bytes for column in source.schema.values())
        tuner = self._tuner = Tuner(budget or Budget.here(), self.batch * row_bytes)
        workers = 1 if source.in_memory else tuner.most()
        return workers, depth or tuner.depth_of(workers)

    def _rehearse(self, source: Source) -> None:
        """Constants of transforms are on the device before the first batch, which is then like every other."""
        if self._transforms:
            none = torch.zeros(1, dtype=torch.int64)
            first = {name: column.to(self._device) for name, column in source.read(none).items()}
            none = none.to(self._device)
            apply(self._transforms, first, Keys(self._seed, none, none))


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
