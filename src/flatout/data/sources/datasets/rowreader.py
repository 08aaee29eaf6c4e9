"""Reads samples of map-style datasets by number, with worker processes or threads, and decides how many."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.files.bad import Bad, OnBad
from flatout.data.source import Batch
from flatout.data.sources.datasets.rowtask import (
    DatasetPart,
    LookTask,
    RowJob,
    RowsRead,
    RowTask,
    SampleLook,
    SampleTerms,
    many,
)
from flatout.data.sources.datasets.samples import Form, put_row
from flatout.data.workers import nursery
from flatout.data.workers.arena import ArenaLayout, WorkerMemory
from flatout.data.workers.failures import Failure, SampleFailed, Unusable, WorkerTraceback, error_of
from flatout.data.workers.parcel import Parcel
from flatout.data.workers.pool import Errand, Pool
from flatout.data.workers.watched import ProcessWorker, ThreadWorker, WontStart, Worker, packed
from flatout.machine import host

_START_S = 2.0  # what starting workers takes: if all samples can be read sooner, one thread reads them
_MOST_WORKERS = 16
_JOB_ROWS, _JOB_BYTES = 256, 8 << 20
_JOB_S = 0.002  # handing a job over takes about 0.2 ms
_TOGETHER_ROWS = 64


class RowReader:
    """All `parts` share the workers and the schema, which comes from the first good sample of the first part.

    `varies`: samples change between visits. `repeats`: reading a sample again for the same visit gives the same values.
    """

    def __init__(
        self,
        parts: Sequence[DatasetPart],
        form: Form,
        workers: int | str,
        processes: bool,
        timeout_s: float,
        bad: Bad,
        seed: int,
    ) -> None:
        self.degraded: list[str] = []
        self.varies = self.repeats = False
        self.bad = bad
        self._parts, self._timeout_s, self._in_place = parts, timeout_s, workers == 0
        self._name = type(parts[0].dataset).__name__
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._known_bad: set[int] = set()
        skip = bad.policy == OnBad.SKIP
        self._task = RowTask(parts, form, seed, skip)
        # packed before the first look, which may change the dataset
        self._parcel = packed(self._task, self._say_threads) if processes and workers != 0 else None
        self._looker = ThreadWorker(LookTask(parts, form, seed, skip), ArenaLayout({}, 0), timeout_s, borrows=True)
        first = self._look_at_all()
        self._terms = replace(first.terms, draws=self.varies)
        self.schema = dict(first.terms.schema)
        self._task.settle(self._terms)
        self._workers = self._decide(workers)
        row_bytes = sum(column.row_bytes for column in self.schema.values())
        self._layout = ArenaLayout(self.schema, max(1, min(_JOB_ROWS, _JOB_BYTES // max(1, row_bytes))))

    def length(self, part: int) -> int:
        return self._parts[part].length

    @property
    def workers(self) -> int:
        return self._workers

    @property
    def alone(self) -> bool:
        return self._parcel is None and (self.varies or self._in_place)

    @property
    def processes(self) -> bool:
        return self._parcel is not None

    def read(self, part: int, rows: Tensor, visits: Tensor, batch: Batch) -> None:
        """Read rows of a part into the tensors of a batch, in the order asked for."""
        self._run(self._ready_pool(), part, rows, visits, batch, self._job_rows(len(rows)))

    def read_here(self, part: int, rows: Tensor) -> Batch:
        """Read a few rows in this process, without starting workers."""
        batch = {name: torch.empty((len(rows), *c.shape), dtype=c.dtype) for name, c in self.schema.items()}
        pool = Pool(self._thread_workers(borrow=True), 1)
        try:
            self._run(pool, part, rows, torch.zeros_like(rows), batch, self._layout.rows)
        finally:
            pool.close()
        return batch

    def resize(self, workers: int) -> None:
        with self._lock:
            self._workers = 1 if self.alone else max(1, workers)
            if self._pool is not None:
                self._pool.resize(self._workers)

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _run(self, pool: Pool, part: int, rows: Tensor, visits: Tensor, batch: Batch, job_rows: int) -> None:
        try:
            pool.run(
                [self._errand(part, rows, visits, batch, start, start + job_rows) for start in range(0, len(rows), job_rows)]
            )
        except SampleFailed as failed:
            raise error_of(failed.failure, self._name, self.bad) from WorkerTraceback(failed.failure.trace)

    def _errand(self, part: int, rows: Tensor, visits: Tensor, batch: Batch, start: int, stop: int) -> Errand:
        wanted = rows[start:stop].numpy()

        def take(came: RowsRead, memory: WorkerMemory) -> None:
            for name, column in batch.items():
                column[start:stop].copy_(memory.columns[name][: len(wanted)])
            self._count(came.left_out)
            self._sample_s = came.seconds / max(1, len(wanted))
            if came.drew:
                self._say_varies()

        return Errand(RowJob(part, wanted, visits[start:stop].numpy()), take, lambda: self._named(part, wanted))

    def _named(self, part: int, rows: Any) -> str:
        numbers = [self._parts[part].number(int(row)) for row in rows[:8]]
        more = f" and {len(rows) - 8} more" if len(rows) > 8 else ""
        return f"samples {', '.join(map(str, numbers))}{more}"

    def _job_rows(self, rows: int) -> int:
        """Two jobs per worker, so that a slow one delays less; longer ones where a job would be over sooner than handed over.

        __getitems__ always gets the same number of samples: it may return other values for another number.
        """
        most = self._layout.rows
        if many(self._parts[0].dataset):
            return min(most, _TOGETHER_ROWS)
        two_each, worth_it = rows / (2 * self._workers), _JOB_S / max(self._sample_s, 1e-9)
        return min(most, max(1, math.ceil(max(two_each, worth_it))))

    def _count(self, left_out: Sequence[Failure]) -> None:
        for failure in left_out:
            with self._lock:
                new = failure.number not in self._known_bad
                self._known_bad.add(failure.number)
            if new:
                self.bad.found(f"sample {failure.number} of {self._name}", failure.why)

    def _say_varies(self) -> None:
        with self._lock:
            if not self.varies:
                self.varies = True
                self.degraded.append(
                    f"{self._name} draws random numbers for some samples, but not for the first and last: rows kept until now "
                    "do not change any more"
                )

    def _say_threads(self, why: str) -> None:
        self.degraded.append(f"{self._name} is read by threads, which run Python code one at a time, not by processes: {why}")

    def _look_at_all(self) -> SampleLook:
        """Read the first and the last sample, twice each, and the first sample of other parts."""
        first = self._look(0, 0)
        looks = [first, self._look(0, 0), *(self._look(0, self._parts[0].length - 1) for _ in range(2))]
        self.repeats = _equal(looks[0].row, looks[1].row) and _equal(looks[2].row, looks[3].row)
        self.varies = not self.repeats or any(look.drew for look in looks)
        if not self.repeats:
            self.degraded.append(
                f"{self._name} gives different values each time a sample is read: its random numbers don't come from the "
                "global generators of Python, NumPy or torch, which are seeded for each sample. Else a resume is not exact"
            )
        for part in range(1, len(self._parts)):
            _check_fits(self._look(part, 0), first)
        self._looker.close()
        self._sample_s = min(look.seconds for look in looks)
        return first

    def _look(self, part: int, row: int) -> SampleLook:
        try:
            looked: SampleLook = self._looker.call((part, row), str)[0]
        except SampleFailed as failed:
            raise error_of(failed.failure, self._name, self.bad) from WorkerTraceback(failed.failure.trace)
        return looked

    def _decide(self, workers: int | str) -> int:
        if workers == "auto" and self._sample_s * sum(part.length for part in self._parts) < _START_S and not self.varies:
            self._parcel = None
            return 1
        cores = int(min(host.affinity_cores(), host.cgroup_cores() or math.inf))
        wanted = max(1, min(cores - 1, _MOST_WORKERS) if isinstance(workers, str) else workers)
        if self.alone and wanted > 1:
            self.degraded.append(
                f"{self._name} draws random numbers from this process's generators, so one thread reads it, not {wanted}"
            )
        return 1 if self.alone else wanted

    def _ready_pool(self) -> Pool:
        with self._lock:
            if self._pool is None:
                self._pool = self._started_pool()
            return self._pool

    def _started_pool(self) -> Pool:
        if self._parcel is not None:
            nursery.prepare(RowTask.__module__)
            try:
                return Pool(
                    _process_workers(self._parcel, self._terms, self._layout, self._timeout_s, self._workers), self._workers
                )
            except WontStart as error:
                self._parcel = None
                self._say_threads(f"a worker could not start ({error})")
                self._workers = 1 if self.alone else self._workers
        return Pool(self._thread_workers(borrow=self.alone), self._workers)

    def _thread_workers(self, borrow: bool) -> Callable[[int, int], Worker]:
        task = self._task if borrow else self._task.without_seed()
        layout, timeout_s = self._layout, self._timeout_s
        return lambda number, of: ThreadWorker(task, layout, timeout_s, borrow)


def _process_workers(
    parcel: Parcel, terms: SampleTerms, layout: ArenaLayout, timeout_s: float, workers: int
) -> Callable[[int, int], ProcessWorker]:
    """Makes workers. Holds no reference to the reader, so that workers end when the reader is garbage collected.

    The first worker is started here: if it can't start, no worker can.
    """
    first = ProcessWorker(parcel, terms, layout, timeout_s, 0, workers)
    first.start()
    return lambda number, of: ProcessWorker(parcel, terms, layout, timeout_s, number, of) if number else first


def _equal(one: Batch, other: Batch) -> bool:
    return all(torch.equal(one[name].nan_to_num(), other[name].nan_to_num()) for name in one)


def _check_fits(validation: SampleLook, train: SampleLook) -> None:
    for name, column in train.terms.schema.items():
        if name not in validation.row:
            raise DataError(f"validation samples have no {name!r}, but training samples have it")
        shape = tuple(validation.row[name].shape)
        if shape != column.shape:
            raise DataError(
                f"{name} has shape {list(column.shape)} in training samples and {list(shape)} in validation samples"
            )
    try:
        places = {name: column.clone().unsqueeze(0) for name, column in train.row.items()}
        put_row(validation.row, train.terms.schema, train.terms.first, places, 0)
    except Unusable as error:
        raise DataError(f"validation, {validation.terms.first}: {error}") from None
