"""Batches of a stream in its own order, read by one worker ahead of their use.

A stream that can go on from a snapshot of its state does so; others are read again up to where they were, which is said.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from flatout.base.errors import UsageError
from flatout.data.feeds.ahead import Ahead
from flatout.data.feeds.contract import Feed
from flatout.data.feeds.landing import Landing, StreamedSamples
from flatout.data.offers import Go, SampleStream, Skip, StreamReader, StreamState
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Source
from flatout.data.transforms import Transform, apply

_DEPTH = 3


class IterableFeed(Feed):
    """Batches of one size from start to end of the stream, across its passes. `position` counts the samples served."""

    def __init__(
        self,
        source: Source,
        batch: int,
        device: torch.device | str,
        *,
        transforms: Sequence[Transform] = (),
        seed: int = 0,
        depth: int = 0,
    ) -> None:
        """`depth` batches are read ahead; 0: a few."""
        if batch < 1:
            raise UsageError(f"batch must be 1 or more, got {batch}")
        if (stream := source.stream) is None:
            raise UsageError(f"{type(source).__name__} has rows by number and is no stream: serve it from a tier")
        self.batch = batch
        self.position = 0
        self._source, self._stream = source, stream
        self._transforms = tuple(transforms)
        self._seed = seed
        self._said: list[str] = []
        self._depth = depth or _DEPTH
        landing = Landing(source.schema, batch, torch.device(device), self._depth)
        self._reading = _Reading(stream, batch, landing, self._said)
        self._begin: Go | Skip | None = None
        self._ahead: Ahead[int, StreamedSamples] | None = None
        self._rest: deque[StreamedSamples] = deque()
        self._snapshot: StreamState | None = None
        self._next_place = (0, 0)  # pass, and place in it, of the sample after the last one served
        if self._transforms:  # their constants are on the device before the first batch
            none = torch.zeros(1, dtype=torch.int64, device=device)
            blank = {name: torch.zeros((1, *c.shape), dtype=c.dtype, device=device) for name, c in source.schema.items()}
            apply(self._transforms, blank, Keys(seed, none, none))

    @property
    def degraded(self) -> list[str]:
        return [*self._source.degraded, *self._reading.landing.degraded, *self._said]

    @property
    def why_not_capturable(self) -> str:
        return "a graph reads its batch from one place, and the shapes of a stream are not known ahead"

    def next(self, size: int | None = None) -> Batch:
        """The next batch of the stream. The host waits only when it is not there yet."""
        size = self.batch if size is None else size
        pieces: list[StreamedSamples] = []
        left = size
        while left:
            piece = self._rest.popleft() if self._rest else self._fetch()
            if len(piece.numbers[0]) > left:
                piece, rest = piece.split(left)
                self._rest.appendleft(rest)
            pieces.append(piece)
            left -= len(piece.numbers[0])
        for piece in pieces:
            self._serve(piece)
        if len(pieces) == 1:
            batch, rows, visits = pieces[0].columns, pieces[0].rows, pieces[0].visits
        else:
            batch = {name: torch.cat([piece.columns[name] for piece in pieces]) for name in pieces[0].columns}
            rows, visits = (torch.cat(parts) for parts in ([p.rows for p in pieces], [p.visits for p in pieces]))
        return apply(self._transforms, batch, Keys(self._seed, visits, rows)) if self._transforms else batch

    def seek(self, position: int) -> None:
        """Where it is already, that is nothing. Else the stream is read again from its start."""
        if position == self.position:
            return
        self.close()
        self.position, self._next_place, self._snapshot = position, (0, 0), None
        self._begin = Skip(position)
        if position:
            self._say_replay(position)

    def state_dict(self) -> dict[str, Any]:
        """Of the samples served: what was read ahead does not count."""
        number, place = self._next_place
        state: dict[str, Any] = {"position": self.position, "pass": number, "place": place, "snapshot": None}
        if self._snapshot is not None:
            state["snapshot"] = asdict(self._snapshot)
        elif isinstance(self._begin, Skip) and self._begin.samples:
            raise UsageError("the place in the stream is not known before the first batch after seek()")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        missing = [name for name in ("position", "pass", "place", "snapshot") if name not in state]
        if missing:
            raise UsageError(
                f"this is no state of an iterable feed: it has no {missing[0]!r}, only {', '.join(map(str, state))}"
            )
        self.close()
        self.position, self._next_place = int(state["position"]), (int(state["pass"]), int(state["place"]))
        self._snapshot = None if state["snapshot"] is None else StreamState(**state["snapshot"])
        self._begin = Go(*self._next_place, self._snapshot)
        if self._snapshot is None and self._next_place[1] > 0:
            self._say_replay(self._next_place[1])

    def close(self) -> None:
        """End the worker. What was read ahead is dropped; `next` goes on after the last sample served."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        if self._reading.close():
            self._begin = self._begin or Go(*self._next_place, self._snapshot)
        self._rest.clear()

    def _say_replay(self, samples: int) -> None:
        why = "it has no state_dict and load_state_dict" if not self._stream.resumes else "its state at that place is not known"
        self._said.append(f"{samples} samples of {self._stream.name} are read again to come back to where the run was: {why}")

    def _serve(self, piece: StreamedSamples) -> None:
        places, passes = piece.numbers
        self._snapshot = piece.snapshot or self._snapshot
        self._next_place = int(passes[-1]), int(places[-1]) + 1
        self.position += len(places)
        self._reading.landing.receive(piece)

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
            self.close()  # whoever goes on all the same does so after the last sample served
            raise


class _Reading:
    """What the thread that reads ahead knows. It does not know the feed, so that one that is forgotten ends."""

    def __init__(self, stream: SampleStream, batch: int, landing: Landing, said: list[str]) -> None:
        self.landing = landing
        self._stream, self._batch, self._said = stream, batch, said
        self._reader: StreamReader | None = None

    def begin(self, at: Go | Skip) -> None:
        self._opened().begin(at)

    def read(self, samples: int) -> StreamedSamples:
        taken, columns = self._opened().take(samples)
        for length in taken.ends:
            self._pass_ended(length)
        return self.landing.land(taken, columns)

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
        told, name = self._stream.length, self._stream.name
        if length < self._batch:
            self._say(f"{name} ends after {length} samples, so a batch of {self._batch} holds some of them more than once")
        if told is not None and length != told:
            self._say(
                f"length={told} was told of {name}, and a pass of it had {length} samples: epochs are counted by the former"
            )

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.append(line)
