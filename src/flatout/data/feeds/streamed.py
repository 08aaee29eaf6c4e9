"""Batches of a stream in its own order, read ahead by one worker.

A stream that can resume from a snapshot of its state does so. Others are read again from the start, which is reported.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from flatout.base.errors import UsageError
from flatout.data.feeds.ahead import Ahead
from flatout.data.feeds.contract import Feed, FeedOptions
from flatout.data.feeds.transfer import SentBatch, Transfer
from flatout.data.offers import Go, SampleStream, Skip, StreamReader, StreamState
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Source, apply

_DEPTH = 3


@dataclass
class StreamedSamples:
    """Samples that were read ahead and not yet served. `snapshot` is the state before the first of them."""

    sent: SentBatch
    places: Any  # on the host: the place of each sample in its pass, and the number of the pass
    passes: Any
    snapshot: StreamState | None

    def __len__(self) -> int:
        return len(self.places)

    def split(self, size: int) -> tuple[StreamedSamples, StreamedSamples]:
        return self._cut(slice(None, size), self.snapshot), self._cut(slice(size, None), None)

    def _cut(self, part: slice, snapshot: StreamState | None) -> StreamedSamples:
        whole = self.sent
        columns = {name: column[part] for name, column in whole.columns.items()}
        sent = SentBatch(columns, whole.rows[part], whole.visits[part], whole.ready)
        return StreamedSamples(sent, self.places[part], self.passes[part], snapshot)


class IterableFeed(Feed):
    """Batches of one size from start to end of the stream, across its passes. `position` counts the samples served."""

    def __init__(self, source: Source, options: FeedOptions) -> None:
        if (stream := source.stream) is None:
            raise UsageError(f"{type(source).__name__} has rows by number and is not a stream: serve it from a tier")
        self.batch = options.batch
        self.position = 0
        self._source, self._stream = source, stream
        self._transforms = options.transforms
        self._seed = options.seed
        self._notes: list[str] = []
        self._depth = options.depth or _DEPTH
        transfer = Transfer(source.schema, self.batch, options.device, self._depth)
        self._reading = _Reading(stream, self.batch, transfer, self._notes)
        self._begin: Go | Skip | None = None
        self._ahead: Ahead[int, StreamedSamples] | None = None
        self._rest: deque[StreamedSamples] = deque()
        self._snapshot: StreamState | None = None
        self._next_place = (0, 0)  # pass, and place in it, of the sample after the last one served
        if self._transforms:  # puts their constants on the device before the first batch
            none = torch.zeros(1, dtype=torch.int64, device=options.device)
            columns = source.schema.items()
            blank = {name: torch.zeros((1, *c.shape), dtype=c.dtype, device=options.device) for name, c in columns}
            apply(self._transforms, blank, Keys(self._seed, none, none))

    @property
    def degraded(self) -> list[str]:
        return [*self._source.degraded, *self._reading.transfer.degraded, *self._notes]

    @property
    def why_not_capturable(self) -> str:
        return "a CUDA graph needs batches of one shape, and the shapes of a stream are not known in advance"

    def next(self, size: int | None = None) -> Batch:
        """The next batch of the stream. The host waits only if the batch is not ready."""
        size = self.batch if size is None else size
        pieces: list[StreamedSamples] = []
        left = size
        while left:
            piece = self._rest.popleft() if self._rest else self._fetch()
            if len(piece) > left:
                piece, rest = piece.split(left)
                self._rest.appendleft(rest)
            pieces.append(piece)
            left -= len(piece)
        for piece in pieces:
            self._serve(piece)
        sent = [piece.sent for piece in pieces]
        if len(sent) == 1:
            batch, rows, visits = sent[0].columns, sent[0].rows, sent[0].visits
        else:
            batch = {name: torch.cat([part.columns[name] for part in sent]) for name in sent[0].columns}
            rows, visits = torch.cat([part.rows for part in sent]), torch.cat([part.visits for part in sent])
        return apply(self._transforms, batch, Keys(self._seed, visits, rows)) if self._transforms else batch

    def seek(self, position: int) -> None:
        """Reads the stream again from its start, unless it is at this position."""
        if position == self.position:
            return
        self.close()
        self.position, self._next_place, self._snapshot = position, (0, 0), None
        self._begin = Skip(position)
        if position:
            self._say_replay(position)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last sample served; samples read ahead do not count."""
        number, place = self._next_place
        state: dict[str, Any] = {"position": self.position, "pass": number, "place": place, "snapshot": None}
        if self._snapshot is not None:
            state["snapshot"] = asdict(self._snapshot)
        elif isinstance(self._begin, Skip) and self._begin.samples:
            raise UsageError("the state of a stream is not known between seek() and the next batch")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        missing = [name for name in ("position", "pass", "place", "snapshot") if name not in state]
        if missing:
            raise UsageError(
                f"this is not the state of an iterable feed: {missing[0]!r} is missing in {', '.join(map(str, state))}"
            )
        self.close()
        self.position, self._next_place = int(state["position"]), (int(state["pass"]), int(state["place"]))
        self._snapshot = None if state["snapshot"] is None else StreamState(**state["snapshot"])
        self._begin = Go(*self._next_place, self._snapshot)
        if self._snapshot is None and self._next_place[1] > 0:
            self._say_replay(self._next_place[1])

    def close(self) -> None:
        """End the worker and drop the samples read ahead. `next` continues after the last sample served."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        if self._reading.close():
            self._begin = self._begin or Go(*self._next_place, self._snapshot)
        self._rest.clear()

    def _say_replay(self, samples: int) -> None:
        why = "it has no state_dict and load_state_dict" if not self._stream.resumes else "its state at that place is not known"
        self._notes.append(f"{samples} samples of {self._stream.name} are read again to reach the place of the run: {why}")

    def _serve(self, piece: StreamedSamples) -> None:
        self._snapshot = piece.snapshot or self._snapshot
        self._next_place = int(piece.passes[-1]), int(piece.places[-1]) + 1
        self.position += len(piece)
        self._reading.transfer.receive(piece.sent)

    def _fetch(self) -> StreamedSamples:
        try:
            if self._begin is not None:
                self._reading.begin(self._begin)
                self._begin = None
            if self._source.alone:
                return self._reading.read(self.batch)
            if self._ahead is None:
                self._ahead = Ahead(self._reading.read, itertools.repeat(self.batch), self._depth)
            return next(self._ahead)
        except BaseException:
            self.close()  # a caller that catches this continues after the last sample served
            raise


class _Reading:
    """The part that the reading thread refers to. It has no reference to the feed, so an unused feed is freed and ends it."""

    def __init__(self, stream: SampleStream, batch: int, transfer: Transfer, notes: list[str]) -> None:
        self.transfer = transfer
        self._stream, self._batch, self._notes = stream, batch, notes
        self._reader: StreamReader | None = None

    def begin(self, at: Go | Skip) -> None:
        self._opened().begin(at)

    def read(self, samples: int) -> StreamedSamples:
        taken, columns = self._opened().take(samples)
        for length in taken.ends:
            self._pass_ended(length)
        size, rows, visits = len(taken.places), torch.from_numpy(taken.places), torch.from_numpy(taken.passes)
        sent = self.transfer.copy({name: column[:size] for name, column in columns.items()}, rows, visits)
        return StreamedSamples(sent, taken.places, taken.passes, taken.snapshot)

    def close(self) -> bool:
        """Whether there was a reader."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        return reader is not None

    def _opened(self) -> StreamReader:
        if self._reader is None:
            self._reader = self._stream.reader(self._batch)
        return self._reader

    def _pass_ended(self, length: int) -> None:
        expected, name = self._stream.length, self._stream.name
        if length < self._batch:
            self._note(f"{name} ends after {length} samples, so a batch of {self._batch} repeats some of them")
        if expected is not None and length != expected:
            self._note(f"{name} has length={expected}, but a pass had {length} samples: {expected} samples count as an epoch")

    def _note(self, line: str) -> None:
        if line not in self._notes:
            self._notes.append(line)
