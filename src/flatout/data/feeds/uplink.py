"""Reads batches for a device with any number of threads. Each thread reads a batch, or a piece of one, into reused buffers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flatout.data.cache.device import DeviceStore
from flatout.data.cache.records import START
from flatout.data.feeds.ahead import Ahead
from flatout.data.feeds.slots import Slot
from flatout.data.feeds.transfer import Finish, SentBatch, Transfer
from flatout.data.feeds.tuning import SPARE
from flatout.data.files.room import empty
from flatout.data.order.keyed import Lookahead, Sampler
from flatout.data.source import Batch, Column, Source

Span = tuple[int, int]

_HOST = torch.device("cpu")


class OutgoingBatch:
    """A batch to send. `sent` is set when all its pieces, which together are the `wanted` rows, are read."""

    def __init__(self, span: Span, rows: Tensor, visits: Tensor, pieces: int) -> None:
        self.span, self.rows, self.visits, self.pieces = span, rows, visits, pieces
        self.wanted = rows
        self.photos = self.wanted_photos = rows  # if the device keeps photos: those of all rows, and of the wanted rows
        self.sent: SentBatch | None = None
        self.lock = threading.Lock()
        self.slot: Slot | None = None
        self.room: Batch | None = None  # pieces are written here
        self.items: list[int] = []  # where each row begins in ragged columns, and the end
        self.left = pieces
        self.resized = False


@dataclass(frozen=True)
class BatchPiece:
    """The wanted rows of a batch from `begin` to `end`: what one thread reads at a time."""

    batch: OutgoingBatch
    begin: int
    end: int
    last: bool


def next_sent(ahead: Ahead[BatchPiece, BatchPiece]) -> tuple[Span, SentBatch]:
    """The next batch. Pieces come in order, so with the last piece all are read."""
    piece = next(ahead)
    while not piece.last:
        piece = next(ahead)
    assert piece.batch.sent is not None
    return piece.batch.span, piece.batch.sent


class _Resized(Exception):
    """A row has another length than announced: it could not be read, and another row replaces it."""


class Uplink:
    """Sends rows of a source to a device. Any number of threads may `carry` at the same time.

    A source with slow rows sets `piece_rows`, the number of rows that one thread reads at a time. Then all threads work on the
    batch that is needed next, and few batches are in progress. Such a source has `sizes` if rows are ragged.

    `finish` runs on the stream of the copies: in parallel to training, not before it. Rows in `kept`, which are on the
    device already, are not read and copied again.
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
        self.rows_read, self.read_s = 0, 0.0
        self._source = source
        self._ahead = Lookahead(sampler, _HOST)
        self._lock = threading.Lock()
        self._ragged = any(column.ragged is not None for column in source.schema.values())
        self._piece_rows = piece_rows(source, batch)
        self._pieces = -(-batch // self._piece_rows)
        self._in_progress: set[OutgoingBatch] = set()
        self._finish_batch = finish
        self._kept = kept
        self.transfer = Transfer(source.schema, batch, device, self._slots_for(workers))

    def resize(self, workers: int) -> None:
        self.transfer.resize(self._slots_for(workers))

    def send(self, span: Span) -> SentBatch:
        return self._whole(self._plan(span, 1))

    def pieces(self, spans: Iterable[Span]) -> Iterator[BatchPiece]:
        """The pieces of one batch after the other."""
        for span in spans:
            rows = span[1] - span[0]
            count = -(-rows // self._piece_rows) if self._whole_at_hand() is None else 1
            batch = self._plan(span, count)
            wanted = len(batch.wanted)
            for number in range(count):  # always as many, because the depth of reading ahead counts pieces
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

    def forget(self) -> None:
        """Free the buffers of unfinished batches. All threads must have stopped."""
        in_progress, self._in_progress = self._in_progress, set()
        for batch in in_progress:
            self.transfer.give_back(batch.slot)

    def _slots_for(self, workers: int) -> int:
        """The buffers that are filled at a time, and those that are copied from."""
        return SPARE + (workers if self._pieces == 1 else -(-workers // self._pieces) + 1)

    def _plan(self, span: Span, pieces: int) -> OutgoingBatch:
        """Cheap if called in order, because rows are computed 64k at a time."""
        with self._lock:
            planned = OutgoingBatch(span, self._ahead.rows(*span), self._ahead.visits(*span), pieces)
        self._look_up(planned)
        return planned

    def _look_up(self, planned: OutgoingBatch) -> None:
        """Find the rows that the device does not have."""
        if self._kept is not None:
            planned.photos = self._kept.photos(planned.rows)
            planned.wanted, planned.wanted_photos = self._kept.missing(planned.rows, planned.photos)

    def _is_outdated(self, planned: OutgoingBatch) -> bool:
        """Whether a photo was found bad in the meantime: then it is unknown which photo was read."""
        return self._kept is not None and not torch.equal(self._kept.photos(planned.rows), planned.photos)

    def _whole(self, planned: OutgoingBatch) -> SentBatch:
        slot = self.transfer.borrow()
        try:
            return self._send_fresh(planned, slot)
        finally:
            self.transfer.give_back(slot)

    def _open(self, batch: OutgoingBatch) -> None:
        """The first thread allocates the buffers; the others wait for it."""
        with batch.lock:
            if batch.room is not None:
                return
            batch.slot = self.transfer.borrow()
            with self._lock:
                self._in_progress.add(batch)
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
            self._in_progress.discard(batch)
        assert batch.room is not None
        try:
            if batch.resized or self._is_outdated(batch):
                return self._send_fresh(batch, batch.slot)
            return self._send(batch, batch.slot, batch.room)
        finally:
            self.transfer.give_back(batch.slot)

    def _send_fresh(self, planned: OutgoingBatch, slot: Slot | None) -> SentBatch:
        """Read all wanted rows and send them. Read again if a photo is found bad in the meantime."""
        began_s = time.perf_counter()
        while True:
            if self._is_outdated(planned):
                self._look_up(planned)
            columns = self._read(planned) if slot is None else self._read_into(slot, planned)
            if not self._is_outdated(planned):
                break
        self._count(len(planned.wanted), time.perf_counter() - began_s)
        return self._send(planned, slot, columns)

    def _send(self, planned: OutgoingBatch, slot: Slot | None, columns: Batch) -> SentBatch:
        rows, visits = planned.rows, planned.visits
        exchange = None if self._kept is None else partial(self._exchanged, self._kept, planned, slot)
        if slot is not None:
            return self.transfer.upload(slot, columns, rows, visits, exchange=exchange, finish=self._finish_batch)
        columns = columns if exchange is None else exchange(columns)
        return SentBatch(columns if self._finish_batch is None else self._finish_batch(columns, rows, visits), rows, visits)

    def _exchanged(self, kept: DeviceStore, planned: OutgoingBatch, slot: Slot | None, read: Batch) -> Batch:
        """Put the rows that were read on the device, and take the whole batch from there."""
        kept.put(planned.wanted_photos, read)
        return kept.gather(planned.photos, None if slot is None else slot.take)

    def _read(self, planned: OutgoingBatch) -> Batch:
        if self._source.by_visit:
            return self._source.read_visits(planned.rows, planned.visits)
        whole = self._whole_at_hand()
        return self._source.read(planned.wanted) if whole is None else self._source.gather(whole, planned.wanted)

    def _whole_at_hand(self) -> Any:
        """On a CPU, rows in memory are picked directly. A device gets copies of them."""
        return self._source.at_hand() if self.transfer.slots is None else None

    def _read_into(self, slot: Slot, planned: OutgoingBatch) -> Batch:
        if self._source.by_visit:
            return {name: slot.take(name, len(column)).copy_(column) for name, column in self._read(planned).items()}
        return dict(self._source.read_with(planned.wanted, slot.take))

    def _count(self, rows: int, read_s: float) -> None:
        with self._lock:
            self.rows_read += rows
            self.read_s += read_s


def piece_rows(source: Source, batch: int) -> int:
    """How many rows of a batch one thread reads at a time."""
    return batch if source.piece_rows is None else min(batch, source.piece_rows)
