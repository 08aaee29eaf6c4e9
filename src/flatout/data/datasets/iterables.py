"""Data from iterable datasets, finite or without end. They keep their own order and are read by one worker, ahead of their use.

One that has `state_dict` and `load_state_dict` goes on where it was; others are read again up to there, which is said.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.bad import Bad
from flatout.data.datasets.landing import Landing, Piece
from flatout.data.datasets.samples import Form
from flatout.data.datasets.streamtask import Go, LookAtStream, Skip, Snapshot, StreamTask, Take, Taken, has_state
from flatout.data.keyed import Keys
from flatout.data.serving.ahead import Ahead
from flatout.data.source import ArraySource, Batch, Column, Source, hash_tensors
from flatout.data.transforms import Transform, apply
from flatout.data.workers import nursery
from flatout.data.workers.arena import Layout, Memory
from flatout.data.workers.failures import SampleFailed, WorkerTraceback, error_of
from flatout.data.workers.watched import ProcessWorker, ThreadWorker, WontStart, Worker, packed

_DEPTH = 3
_GATHER_ROWS = 256
_GATHER_MOST_BYTES = 8 << 30


class IterableSource(Source):
    """What is known of an iterable before it is read. Rows can't be asked for by number: `IterableFeed` serves them."""

    def __init__(
        self,
        dataset: Any,
        form: Form,
        *,
        length: float | None = None,
        in_process: bool = True,
        timeout_s: float = 60,
        bad: Bad | None = None,
        seed: int = 0,
    ) -> None:
        if length is not None and (not length >= 1 or (length != math.inf and length != int(length))):
            raise UsageError(f"length is a number of samples, 1 or more, or math.inf for an iterable without end; got {length}")
        self.degraded: list[str] = []
        self.bad = bad or Bad()
        self.length = None if length is None or length == math.inf else int(length)
        self.name = type(dataset).__name__
        self.resumes = has_state(dataset)
        self._timeout_s = timeout_s
        self._task = StreamTask(dataset, form, seed, self.bad.policy == "skip", endless=length == math.inf)
        self._parcel = packed(self._task, self._say_thread) if in_process else None
        looker = ThreadWorker(LookAtStream(self._task), Layout({}, 0), timeout_s, borrows=True)
        self._terms, self._drew = self._answer(looker, Take(1))[0]
        looker.close()
        self._task.settle(self._terms)

    @property
    def schema(self) -> dict[str, Column]:
        return dict(self._terms.schema)

    def __len__(self) -> int:
        if self.length is None:
            raise DataError(
                f"{self.name} is an iterable of unknown length, so epochs can't be counted: give a budget in steps, samples or "
                "minutes, or tell length="
            )
        return self.length

    @property
    def epoch_rows(self) -> int | None:
        return self.length

    def read(self, rows: Tensor) -> Batch:
        raise DataError(f"{self.name} is an iterable: its samples come in its own order and can't be asked for by number")

    def fingerprint(self) -> str:
        """Of the kind of samples alone: to read some would take them from whoever streams them."""
        kinds = repr((self.name, self.length, str(self.schema))).encode()
        return hash_tensors({"kinds": torch.tensor(list(kinds), dtype=torch.uint8)})

    @property
    def alone(self) -> bool:
        """Draws from the generators of this process: read while the thread that trains waits, not ahead of it."""
        return self._parcel is None and self._drew

    def worker(self, batch: int) -> Worker:
        """The one that reads, from the start. A process where that can be had."""
        layout = Layout(self.schema, batch)
        if self._parcel is not None:
            nursery.prepare()
            worker = ProcessWorker(self._parcel, self._terms, layout, self._timeout_s)
            try:
                worker.start()
                return worker
            except WontStart as error:
                self._say_thread(f"a worker could not start ({error})")
                self._parcel = None
        if not self._drew:
            self._task.leave_generators()
        self._task.rewind()
        return ThreadWorker(self._task, layout, self._timeout_s, borrows=self._drew)

    def call(self, worker: Worker, job: Any) -> tuple[Any, Memory]:
        reply, memory = self._answer(worker, job)
        for failure in reply.left_out if isinstance(reply, Taken) else ():
            self.bad.found(f"sample {failure.number} of {self.name}", failure.why)
        return reply, memory

    def _answer(self, worker: Worker, job: Any) -> tuple[Any, Memory]:
        try:
            return worker.call(job, lambda: f"the next samples of {self.name}")
        except SampleFailed as failed:
            raise error_of(failed.failure, self.name, self.bad) from WorkerTraceback(failed.failure.trace)

    def _say_thread(self, why: str) -> None:
        self.degraded.append(f"{self.name} is read by a thread, beside the Python code that trains, not by a process: {why}")


class IterableFeed:
    """Batches of one size from start to end of the stream, across its passes. `position` counts the samples served."""

    def __init__(
        self,
        source: IterableSource,
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
        self.batch = batch
        self.position = 0
        self._source = source
        self._transforms = tuple(transforms)
        self._seed = seed
        self._said: list[str] = []
        self._depth = depth or _DEPTH
        self._reading = _Reading(source, batch, torch.device(device), self._said, self._depth)
        self._begin: Go | Skip | None = None
        self._ahead: Ahead[Take, Piece] | None = None
        self._rest: deque[Piece] = deque()
        self._snapshot: Snapshot | None = None
        self._next_place = (0, 0)  # pass, and place in it, of the sample after the last one served
        if self._transforms:  # their constants are on the device before the first batch
            none = torch.zeros(1, dtype=torch.int64, device=device)
            blank = {name: torch.zeros((1, *c.shape), dtype=c.dtype, device=device) for name, c in source.schema.items()}
            apply(self._transforms, blank, Keys(seed, none, none))

    @property
    def degraded(self) -> list[str]:
        return [*self._source.degraded, *self._reading.landing.degraded, *self._said]

    def next(self, size: int | None = None) -> Batch:
        """The next batch of the stream. The host waits only when it is not there yet."""
        size = self.batch if size is None else size
        pieces: list[Piece] = []
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
        self._snapshot = None if state["snapshot"] is None else Snapshot(**state["snapshot"])
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
        why = "it has no state_dict and load_state_dict" if not self._source.resumes else "its state at that place is not known"
        self._said.append(f"{samples} samples of {self._source.name} are read again to come back to where the run was: {why}")

    def _serve(self, piece: Piece) -> None:
        places, passes = piece.numbers
        self._snapshot = piece.snapshot or self._snapshot
        self._next_place = int(passes[-1]), int(places[-1]) + 1
        self.position += len(places)
        self._reading.landing.receive(piece)

    def _fetch(self) -> Piece:
        try:
            if self._begin is not None:
                self._reading.call(self._begin)
                self._begin = None
            if self._source.alone:
                return self._reading.read(Take(self.batch))
            if self._ahead is None:
                self._ahead = Ahead(self._reading.read, itertools.repeat(Take(self.batch)), self._depth)
            return next(self._ahead)
        except BaseException:
            self.close()  # whoever goes on all the same does so after the last sample served
            raise


class _Reading:
    """What the thread that reads ahead knows. It does not know the feed, so that one that is forgotten ends."""

    def __init__(self, source: IterableSource, batch: int, device: torch.device, said: list[str], depth: int) -> None:
        self.landing = Landing(source.schema, batch, device, depth)
        self._source, self._batch, self._said = source, batch, said
        self._worker: Worker | None = None

    def call(self, job: Go | Skip | Take) -> tuple[Any, Memory]:
        if self._worker is None:
            self._worker = self._source.worker(self._batch)
        return self._source.call(self._worker, job)

    def read(self, take: Take) -> Piece:
        taken, memory = self.call(take)
        for length in taken.ends:
            self._pass_ended(length)
        return self.landing.land(taken, memory)

    def close(self) -> bool:
        """Whether there was a worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        return worker is not None

    def _pass_ended(self, length: int) -> None:
        told, name = self._source.length, self._source.name
        if length < self._batch:
            self._say(f"{name} ends after {length} samples, so a batch of {self._batch} holds some of them more than once")
        if told is not None and length != told:
            self._say(
                f"length={told} was told of {name}, and a pass of it had {length} samples: epochs are counted by the former"
            )

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.append(line)


def gathered(source: IterableSource, most_bytes: int = _GATHER_MOST_BYTES) -> ArraySource:
    """One pass of an iterable, kept in memory: to validate on, samples must be the same each time."""
    worker = source.worker(_GATHER_ROWS)
    columns: dict[str, list[Tensor]] = {name: [] for name in source.schema}
    held_bytes = 0
    try:
        while True:
            taken, memory = source.call(worker, Take(_GATHER_ROWS, one_pass=True))
            rows = len(taken.places)
            for name, parts in columns.items():
                parts.append(memory.columns[name][:rows].clone())
                held_bytes += parts[-1].nbytes
            if rows < _GATHER_ROWS:
                return ArraySource({name: torch.cat(parts) for name, parts in columns.items()})
            if held_bytes > most_bytes:
                raise DataError(
                    f"validation: {source.name} is an iterable and has not ended after {held_bytes / 1e9:.1f} GB: to validate "
                    "on, give a dataset that ends, or one with __getitem__ and __len__"
                )
    finally:
        worker.close()
