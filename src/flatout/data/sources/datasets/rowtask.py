"""Reads samples of a map-style Dataset into a worker's memory. The same code runs in processes and threads."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import Subset

from flatout.base.errors import DataError
from flatout.data.source import Batch, Schema
from flatout.data.sources.datasets.samples import Form, put, schema_of
from flatout.data.workers.arena import WorkerMemory
from flatout.data.workers.failures import Failure, SampleFailed
from flatout.data.workers.seeding import drawn_since, generators, set_generators


@dataclass(frozen=True)
class DatasetPart:
    """A dataset, or the samples listed in `numbers`: row r is then sample numbers[r]."""

    dataset: Any
    length: int
    numbers: Any = None

    def number(self, row: int) -> int:
        return row if self.numbers is None else int(self.numbers[row])


@dataclass(frozen=True)
class RowJob:
    """Rows of one part and their visits, as int64 arrays."""

    part: int
    rows: Any
    visits: Any


@dataclass(frozen=True)
class SampleTerms:
    """From the first samples: how they become rows, their schema, the first one's name, whether they draw at random."""

    picks: tuple[tuple[str, str | int], ...]
    schema: Schema
    first: str
    draws: bool = True


@dataclass(frozen=True)
class SampleLook:
    """A sample that was read to learn the schema."""

    terms: SampleTerms
    row: Batch
    drew: bool
    seconds: float


@dataclass(frozen=True)
class RowsRead:
    """`left_out`: bad samples that were skipped. `drew`: a sample drew random numbers for the first time."""

    left_out: list[Failure]
    drew: bool
    seconds: float = 0.0


class RowTask:
    """With a seed, random number generators are seeded for each sample.

    Seeding takes longer than reading a small sample. So as long as no sample has drawn random numbers, a job is read without
    seeding, and read again with seeding if a sample did draw.
    """

    def __init__(self, parts: Sequence[DatasetPart], form: Form, seed: int | None, skip: bool) -> None:
        self.dataset = parts[0].dataset
        self._parts, self._form, self._seed, self._skip = parts, form, seed, skip
        self._terms = SampleTerms((), {}, "")
        self._draws = True

    def settle(self, terms: SampleTerms) -> None:
        self._terms = terms
        self._form = replace(self._form, picks=terms.picks)
        self._draws = terms.draws

    def without_seed(self) -> RowTask:
        task = copy.copy(self)
        task._seed = None
        return task

    def __call__(self, job: RowJob, memory: WorkerMemory) -> RowsRead:
        began_s = time.perf_counter()
        drew = False
        if self._seed is None or self._draws:
            left_out = self._read(job, memory)
        else:
            before = generators()
            left_out = self._read(job, memory)
            if drawn_since(before):
                self._draws = drew = True
                left_out = self._read(job, memory)
        return RowsRead(left_out, drew, time.perf_counter() - began_s)

    def _read(self, job: RowJob, memory: WorkerMemory) -> list[Failure]:
        """Returns the samples that were skipped."""
        part, bad = self._parts[job.part], list[Failure]()
        together = self._together(part, job, memory)
        for place, (row, visit) in enumerate(zip(job.rows.tolist(), job.visits.tolist(), strict=True)):
            if together is None or not self._placed(together[place], memory, place):
                self._one(part, row, visit, memory, place, bad)
        return bad

    def _together(self, part: DatasetPart, job: RowJob, memory: WorkerMemory) -> list[Any] | None:
        """The samples from __getitems__. None if there is none or it raised; then samples are read one by one."""
        fetch = many(part.dataset)
        if fetch is None or not len(job.rows):
            return None
        numbers = [part.number(row) for row in job.rows.tolist()]
        memory.at(numbers[0])
        self._set(int(job.visits[0]), numbers[0])
        try:
            samples = list(fetch(numbers))
        except Exception:
            return None  # reading one by one finds the bad sample
        if len(samples) != len(numbers):
            why = f"__getitems__ got {len(numbers)} numbers, starting with this one, and returned {len(samples)} samples"
            raise SampleFailed(Failure(numbers[0], why, why))
        return samples

    def _placed(self, sample: Any, memory: WorkerMemory, place: int) -> bool:
        try:
            self._put(sample, memory, place)
        except Exception:
            return False
        return True

    def _one(self, part: DatasetPart, row: int, visit: int, memory: WorkerMemory, place: int, bad: list[Failure]) -> None:
        """Read a row. If bad samples are skipped, the next good one in stored order takes its place, the same in every run."""
        for step in range(part.length):
            number = part.number((row + step) % part.length)
            memory.at(number)
            self._set(visit, number)
            try:
                self._put(part.dataset[number], memory, place)
                return
            except MemoryError:
                raise
            except Exception as error:
                failure = Failure.of(number, error)
            if not self._skip:
                raise SampleFailed(failure)
            bad.append(failure)
        raise _none_left(part, failure)

    def _put(self, sample: Any, memory: WorkerMemory, place: int) -> None:
        put(sample, self._form, self._terms.schema, self._terms.first, memory, place)

    def _set(self, visit: int, number: int) -> None:
        if self._seed is not None and self._draws:
            set_generators(self._seed, visit, number)


class LookTask:
    """Reads the first good sample from a row on, in the training process, to learn the schema."""

    def __init__(self, parts: Sequence[DatasetPart], form: Form, seed: int, skip: bool) -> None:
        self._parts, self._form, self._seed, self._skip = parts, form, seed, skip

    def __call__(self, job: tuple[int, int], memory: WorkerMemory) -> SampleLook:
        part = self._parts[job[0]]
        for step in range(part.length):
            number = part.number((job[1] + step) % part.length)
            memory.at(number)
            set_generators(self._seed, 0, number)
            before, start_s = generators(), time.perf_counter()
            try:
                sample = part.dataset[number]
                form = self._form.settled(sample)
                row = {name: column.clone() for name, column in form.row(sample).items()}
                seconds = time.perf_counter() - start_s
                drew = drawn_since(before)
            except DataError:
                raise  # about the names of columns, not about this sample
            except Exception as error:
                failure = Failure.of(number, error)
            else:
                assert form.picks is not None
                return SampleLook(SampleTerms(form.picks, schema_of(row), f"sample {number}"), row, drew, seconds)
            if not self._skip:
                raise SampleFailed(failure)
        raise _none_left(part, failure)


def many(dataset: Any) -> Callable[[list[int]], Any] | None:
    """The dataset's __getitems__. A Subset always has one, so it counts only if the dataset inside has one too."""
    within = dataset
    while type(within) is Subset:
        within = within.dataset
    fetch = dataset.__getitems__ if callable(getattr(within, "__getitems__", None)) else None
    return fetch


def _none_left(part: DatasetPart, last: Failure) -> SampleFailed:
    return SampleFailed(
        Failure(last.number, f"{last.why}; none of the other {part.length - 1} samples can be used either", last.trace)
    )
