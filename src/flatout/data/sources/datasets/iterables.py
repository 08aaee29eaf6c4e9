"""Data from iterable datasets, finite or endless. They keep their own order and are read by one worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.files.bad import Bad, OnBad
from flatout.data.offers import Go, SampleStream, Skip, Taken
from flatout.data.source import ArraySource, Batch, Column, Source, hash_tensors
from flatout.data.sources.datasets.samples import Form
from flatout.data.sources.datasets.streamtask import LookAtStream, Reply, StreamTask, TakeSamples, has_state
from flatout.data.workers import nursery
from flatout.data.workers.arena import ArenaLayout, WorkerMemory
from flatout.data.workers.failures import SampleFailed, WorkerTraceback, error_of
from flatout.data.workers.watched import ProcessWorker, ThreadWorker, WontStart, Worker, packed

_GATHER_ROWS = 256
_GATHER_MOST_BYTES = 8 << 30


class IterableSource(Source):
    """An iterable dataset. Rows can't be read by number: a `reader` takes them in order."""

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
            raise UsageError(f"length is a number of samples, 1 or more, or math.inf for an endless iterable; got {length}")
        self._degraded: list[str] = []
        self._bad = bad or Bad()
        self.length = None if length is None or length == math.inf else int(length)
        self.name = type(dataset).__name__
        self.resumes = has_state(dataset)
        self._timeout_s = timeout_s
        self._task = StreamTask(dataset, form, seed, self._bad.policy == OnBad.SKIP, endless=length == math.inf)
        self._parcel = packed(self._task, self._say_thread) if in_process else None
        looker = ThreadWorker(LookAtStream(self._task), ArenaLayout({}, 0), timeout_s, borrows=True)
        self._terms, self._drew = self._answer(looker, TakeSamples(1))[0]
        looker.close()
        self._task.settle(self._terms)

    @property
    def schema(self) -> dict[str, Column]:
        return dict(self._terms.schema)

    def __len__(self) -> int:
        if self.length is None:
            raise DataError(
                f"{self.name} is an iterable of unknown length, so epochs can't be counted: give a budget in steps, samples or "
                "minutes, or set length="
            )
        return self.length

    @property
    def epoch_rows(self) -> int | None:
        return self.length

    @property
    def stream(self) -> SampleStream:
        return self

    @property
    def bad(self) -> Bad:
        return self._bad

    @property
    def degraded(self) -> list[str]:
        return self._degraded

    def read(self, rows: Tensor) -> Batch:
        raise DataError(f"{self.name} is an iterable: its samples can't be read by number")

    def fingerprint(self) -> str:
        """Of name, length and schema only: samples that are read here would be missing from the stream."""
        kinds = repr((self.name, self.length, str(self.schema))).encode()
        return hash_tensors({"kinds": torch.tensor(list(kinds), dtype=torch.uint8)})

    @property
    def alone(self) -> bool:
        return self._parcel is None and self._drew

    def reader(self, most: int) -> IterableReader:
        return IterableReader(self._worker(most), self._called)

    def _worker(self, rows: int) -> Worker:
        """A worker that reads from the start: a process if possible, else a thread."""
        layout = ArenaLayout(self.schema, rows)
        if self._parcel is not None:
            nursery.prepare(StreamTask.__module__)
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

    def _called(self, worker: Worker, job: Any) -> tuple[Any, WorkerMemory]:
        reply, memory = self._answer(worker, job)
        for failure in reply.left_out if isinstance(reply, Reply) else ():
            self._bad.found(f"sample {failure.number} of {self.name}", failure.why)
        return reply, memory

    def _answer(self, worker: Worker, job: Any) -> tuple[Any, WorkerMemory]:
        try:
            return worker.call(job, lambda: f"the next samples of {self.name}")
        except SampleFailed as failed:
            raise error_of(failed.failure, self.name, self._bad) from WorkerTraceback(failed.failure.trace)

    def _say_thread(self, why: str) -> None:
        self._degraded.append(f"{self.name} is read by a thread of the training process, not by a worker process: {why}")


class IterableReader:
    """Takes samples from a worker; skipped bad samples are counted."""

    def __init__(self, worker: Worker, call: Callable[[Worker, Any], tuple[Any, WorkerMemory]]) -> None:
        self._worker, self._call = worker, call

    def begin(self, at: Go | Skip) -> None:
        self._call(self._worker, at)

    def take(self, samples: int, *, one_pass: bool = False) -> tuple[Taken, Mapping[str, Tensor]]:
        """The next samples. With `one_pass`, fewer at the end of the pass."""
        taken, memory = self._call(self._worker, TakeSamples(samples, one_pass))
        return taken, memory.columns

    def close(self) -> None:
        self._worker.close()


def gathered(source: IterableSource, most_bytes: int = _GATHER_MOST_BYTES) -> ArraySource:
    """One pass of an iterable, kept in memory, so that every validation uses the same samples."""
    reader = source.reader(_GATHER_ROWS)
    columns: dict[str, list[Tensor]] = {name: [] for name in source.schema}
    held_bytes = 0
    try:
        while True:
            taken, landed = reader.take(_GATHER_ROWS, one_pass=True)
            rows = len(taken.places)
            for name, parts in columns.items():
                parts.append(landed[name][:rows].clone())
                held_bytes += parts[-1].nbytes
            if rows < _GATHER_ROWS:
                return ArraySource({name: torch.cat(parts) for name, parts in columns.items()})
            if held_bytes > most_bytes:
                raise DataError(
                    f"validation: the iterable {source.name} has not ended after {held_bytes / 1e9:.1f} GB: give a dataset "
                    "that ends, or one with __getitem__ and __len__"
                )
    finally:
        reader.close()
