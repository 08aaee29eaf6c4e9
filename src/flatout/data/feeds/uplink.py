"""Rows on their way to a device: read by any number of threads, each a batch or a piece of one, into reused pinned buffers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.data.cache.device import DeviceStore
from flatout.data.cache.records import START
from flatout.data.feeds.ahead import Ahead
from flatout.data.feeds.slots import Slot, Slots
from flatout.data.feeds.tuning import SPARE
from flatout.data.files.room import empty
from flatout.data.order.order import Lookahead, Sampler
from flatout.data.source import Batch, Column, Source

Span = tuple[int, int]
Finish = Callable[[Batch, Tensor, Tensor], Batch]
"""What makes a batch of columns as they were read, their rows and visits."""

_HOST = torch.device("cpu")
_NUMBERS = Column(torch.int64, ())
_ROWS, _VISITS = "<rows>", "<visits>"  # beside the columns in a slot


@dataclass(frozen=True)
class SentBatch:
    """A batch on its way: its tensors may be used once the stream has passed `ready` (None: they never left the host)."""

    columns: Batch
    rows: Tensor
    visits: Tensor
    ready: Any
    span: Span


class OutgoingBatch:
    """A batch that is to be sent, and `sent` once all its pieces are read: those of the `wanted` rows."""

    def __init__(self, span: Span, rows: Tensor, visits: Tensor, pieces: int) -> None:
        self.span, self.rows, self.visits, self.pieces = span, rows, visits, pieces
        self.wanted = rows
        self.photos = self.wanted_photos = rows  # where the device keeps them: what rows show, and what the wanted ones do
        self.sent: SentBatch | None = None
        self.lock = threading.Lock()
        self.slot: Slot | None = None
        self.room: Batch | None = None  # where pieces are written to
        self.items: list[int] = []  # where each row begins in ragged columns, and the end
        self.left = pieces
        self.resized = False


@dataclass(frozen=True)
class BatchPiece:
    """Of the rows that a batch wants those from `begin` to `end`: what one thread reads at a time."""

    batch: OutgoingBatch
    begin: int
    end: int
    last: bool


def next_sent(ahead: Ahead[BatchPiece, BatchPiece]) -> SentBatch:
    """The next batch: pieces come in order, so with its last one all are read."""
    piece = next(ahead)
    while not piece.last:
        piece = next(ahead)
    assert piece.batch.sent is not None
    return piece.batch.sent


class _Resized(Exception):
    """A row is not as long as it was said to be: what it was could not be read, and another stands in for it."""


class Uplink:
    """Sends rows of a source to a device. Any number of threads may `carry` at a time.

    A source whose rows take long to read says by `piece_rows` how many of them are one thread's work: then all threads work at
    the batch that is needed next, and few batches are under way at a time. It has `sizes`, if rows are ragged.

    What is left to do on the device, `finish`, goes to the stream of the copies: it runs beside training, not before it.
    Rows that the device keeps, `kept`, are read and copied once.
    """

    def __init__(
        self,
        source: Source,
        sampler: Sampler,
        batch: int,
        device: torch.device,
        workers: int = 1,
        finish: Finish | None = None,
        kept: DeviceStore | None = None,
    ) -> None:
        self.rows_read, self.read_s, self.copied_bytes, self.copy_s = 0, 0.0, 0, 0.0
        self._source = source
        self._ahead = Lookahead(sampler, _HOST)
        self._device = device
        self._lock = threading.Lock()
        self._ragged = any(column.ragged is not None for column in source.schema.values())
        self._piece_rows = piece_rows(source, batch)
        self._pieces = -(-batch // self._piece_rows)
        self._under_way: set[OutgoingBatch] = set()
        self._finish_batch = finish
        self._kept = kept
        self._slots: Slots | None = None
        if device.type != "cpu":
            self._module = torch.get_device_module(device)
            self._stream = self._module.Stream(device)
            columns = {**source.schema, _ROWS: _NUMBERS, _VISITS: _NUMBERS}
            self._slots = Slots(columns, batch, self._slots_for(workers))

    @property
    def degraded(self) -> list[str]:
        return [] if self._slots is None else self._slots.degraded

    @property
    def buffer_bytes(self) -> int:
        return 0 if self._slots is None else self._slots.nbytes

    def resize(self, workers: int) -> None:
        if self._slots is not None:
            self._slots.resize(self._slots_for(workers))

    def send(self, span: Span) -> SentBatch:
        planned = self._plan(span, 1)
        return self._whole(planned)

    def pieces(self, spans: Iterable[Span]) -> Iterator[BatchPiece]:
        """Of one batch after the other."""
        for span in spans:
            rows = span[1] - span[0]
            count = -(-rows // self._piece_rows) if self._whole_at_hand() is None else 1
            batch = self._plan(span, count)
            wanted = len(batch.wanted)
            for number in range(count):  # as many whatever is wanted: the depth ahead of training counts them
                yield BatchPiece(batch, wanted * number // count, wanted * (number + 1) // count, last=number == count - 1)

    def carry(self, piece: BatchPiece) -> BatchPiece:
        batch = piece.batch
        if batch.pieces == 1:
            batch.sent = self._whole(batch)
            return piece
        self._open(batch)
        self._fill(piece)
        with batch.lock:
            batch.left -= 1
            done = batch.left == 0
        if done:
            batch.sent = self._finish(batch)
        return piece

    def receive(self, sent: SentBatch) -> None:
        """Order the current stream after the copy; the host does not wait."""
        if sent.ready is None:
            return
        current = self._module.current_stream(self._device)
        current.wait_event(sent.ready)
        for tensor in (*sent.columns.values(), sent.rows, sent.visits):
            tensor.record_stream(current)  # made on the side stream: its memory is not reused before this one is done

    def follow(self) -> None:
        """What the current stream does now comes before what is sent from here on."""
        if self._slots is not None:
            self._stream.wait_stream(self._module.current_stream(self._device))

    def forget(self) -> None:
        """Batches that nobody will finish, all threads having stopped: their buffers are lent again."""
        under_way, self._under_way = self._under_way, set()
        for batch in under_way:
            if self._slots is not None and batch.slot is not None:
                self._slots.give_back(batch.slot)

    def _slots_for(self, workers: int) -> int:
        """Those being filled, and those that are copied from."""
        return SPARE + (workers if self._pieces == 1 else -(-workers // self._pieces) + 1)

    def _plan(self, span: Span, pieces: int) -> OutgoingBatch:
        """Cheap, and best called in order: rows are made by the 64k."""
        with self._lock:
            planned = OutgoingBatch(span, self._ahead.rows(*span), self._ahead.visits(*span), pieces)
        self._look_up(planned)
        return planned

    def _look_up(self, planned: OutgoingBatch) -> None:
        """What the device lacks."""
        if self._kept is not None:
            planned.photos = self._kept.photos(planned.rows)
            planned.wanted, planned.wanted_photos = self._kept.missing(planned.rows, planned.photos)

    def _is_outdated(self, planned: OutgoingBatch) -> bool:
        """Whether a photo turned out bad meanwhile: then nobody knows which one was read."""
        return self._kept is not None and not torch.equal(self._kept.photos(planned.rows), planned.photos)

    def _whole(self, planned: OutgoingBatch) -> SentBatch:
        if self._slots is None:
            began_s = time.perf_counter()
            columns = self._read_surely(planned, lambda: self._read(planned))
            self._count(len(planned.wanted), time.perf_counter() - began_s)
            return self._here(planned, columns)
        slot = self._slots.borrow()
        try:
            return self._through(slot, planned)
        finally:
            self._slots.give_back(slot)

    def _open(self, batch: OutgoingBatch) -> None:
        """The first thread that comes makes room; the others wait until it has."""
        with batch.lock:
            if batch.room is not None:
                return
            if self._slots is not None:
                batch.slot = self._slots.borrow()
            with self._lock:
                self._under_way.add(batch)
            if self._ragged:
                batch.items = [0, *self._source.row_sizes(batch.wanted).cumsum(0).tolist()]
            batch.room = {name: self._room(batch, name, column) for name, column in self._source.schema.items()}

    def _room(self, batch: OutgoingBatch, name: str, column: Column) -> Tensor:
        length = len(batch.wanted) if column.ragged is None else batch.items[-1]
        return empty((length, *column.shape), column.dtype) if batch.slot is None else batch.slot.take(name, length)

    def _fill(self, piece: BatchPiece) -> None:
        batch, schema = piece.batch, self._source.schema
        if piece.begin == piece.end:
            return
        assert batch.room is not None
        room = batch.room

        def take(name: str, length: int) -> Tensor:
            ragged = schema[name].ragged is not None
            begin, end = (batch.items[piece.begin], batch.items[piece.end]) if ragged else (piece.begin, piece.end)
            if length != end - begin:
                raise _Resized
            return room[name][begin:end]

        began_s = time.perf_counter()
        try:
            self._source.read_with(batch.wanted[piece.begin : piece.end], take)
            if self._ragged:
                room[START][piece.begin : piece.end] += batch.items[piece.begin]
        except _Resized:
            batch.resized = True
        self._count(piece.end - piece.begin, time.perf_counter() - began_s)

    def _finish(self, batch: OutgoingBatch) -> SentBatch:
        with self._lock:
            self._under_way.discard(batch)
        assert batch.room is not None
        batch.resized = batch.resized or self._is_outdated(batch)
        if batch.slot is None:
            columns = self._read_surely(batch, lambda: self._read(batch)) if batch.resized else batch.room
            return self._here(batch, columns)
        assert self._slots is not None
        try:
            if batch.resized:
                return self._through(batch.slot, batch)
            self._note_copy(batch.slot)
            return self._upload(batch.slot, batch, dict(batch.room))
        finally:
            self._slots.give_back(batch.slot)

    def _through(self, slot: Slot, planned: OutgoingBatch) -> SentBatch:
        self._note_copy(slot)
        began_s = time.perf_counter()
        filled = self._read_surely(planned, lambda: self._read_into(slot, planned))
        self._count(len(planned.wanted), time.perf_counter() - began_s)
        return self._upload(slot, planned, filled)

    def _read_surely(self, planned: OutgoingBatch, read: Callable[[], Batch]) -> Batch:
        """Again, if a photo turned out bad on the way."""
        while True:
            if self._is_outdated(planned):
                self._look_up(planned)
            columns = read()
            if not self._is_outdated(planned):
                return columns

    def _upload(self, slot: Slot, planned: OutgoingBatch, filled: Batch) -> SentBatch:
        with self._module.stream(self._stream):
            slot.began = self._event()
            slot.copied_bytes = sum(column.nbytes for column in filled.values())
            if self._kept is not None:
                self._kept.put(planned.wanted_photos, filled)
                filled = self._kept.gather(planned.photos, slot.take)
            filled[_ROWS] = slot.take(_ROWS, len(planned.rows)).copy_(planned.rows)
            filled[_VISITS] = slot.take(_VISITS, len(planned.rows)).copy_(planned.visits)
            uploaded = {name: column.to(self._device, non_blocking=True) for name, column in filled.items()}
            slot.copied = ready = self._event()
            rows, visits = uploaded.pop(_ROWS), uploaded.pop(_VISITS)
            if self._finish_batch is not None:
                uploaded = self._finish_batch(uploaded, rows, visits)
                ready = self._stream.record_event()
        return SentBatch(uploaded, rows, visits, ready, planned.span)

    def _here(self, planned: OutgoingBatch, columns: Batch) -> SentBatch:
        if self._kept is not None:
            self._kept.put(planned.wanted_photos, columns)
            columns = self._kept.gather(planned.photos)
        if self._finish_batch is not None:
            columns = self._finish_batch(columns, planned.rows, planned.visits)
        return SentBatch(columns, planned.rows, planned.visits, None, planned.span)

    def _read(self, planned: OutgoingBatch) -> Batch:
        if self._source.by_visit:
            return self._source.read_visits(planned.rows, planned.visits)
        whole = self._whole_at_hand()
        return self._source.read(planned.wanted) if whole is None else self._source.gather(whole, planned.wanted)

    def _whole_at_hand(self) -> Any:
        """On a CPU rows that are in memory are picked where they lie; a device gets copies of them."""
        return self._source.at_hand() if self._slots is None else None

    def _read_into(self, slot: Slot, planned: OutgoingBatch) -> Batch:
        if self._source.by_visit:
            return {name: slot.take(name, len(column)).copy_(column) for name, column in self._read(planned).items()}
        return dict(self._source.read_with(planned.wanted, slot.take))

    def _event(self) -> Any:
        return self._stream.record_event(self._module.Event(enable_timing=True))

    def _note_copy(self, slot: Slot) -> None:
        """What the slot's last copy took; it is over."""
        if slot.copied is not None:
            copy_s = slot.began.elapsed_time(slot.copied) / 1e3
            with self._lock:
                self.copied_bytes += slot.copied_bytes
                self.copy_s += copy_s

    def _count(self, rows: int, read_s: float) -> None:
        with self._lock:
            self.rows_read += rows
            self.read_s += read_s


def piece_rows(source: Source, batch: int) -> int:
    """Rows of a batch that one thread reads at a time."""
    return batch if source.piece_rows is None else min(batch, source.piece_rows)
