"""Reads samples of an iterable into a worker's memory, pass after pass, in the iterable's order."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.offers import Go, Skip, StreamState, Taken
from flatout.data.sources.datasets.rowtask import SampleTerms
from flatout.data.sources.datasets.samples import Form, put, schema_of
from flatout.data.workers.arena import WorkerMemory
from flatout.data.workers.failures import Failure, SampleFailed
from flatout.data.workers.seeding import drawn_since, generators, set_generators

_SNAPSHOT_S = 1.0  # least time between two states: they can be large and slow to make
_BEGINNING = (1 << 63) - 1  # stands for a sample's number when generators are seeded for the start of a pass


@dataclass(frozen=True)
class TakeSamples:
    """Take the next samples. With `one_pass`, fewer at the end of the pass."""

    samples: int
    one_pass: bool = False


@dataclass
class Reply(Taken):
    """The samples taken, and the bad samples that were skipped."""

    left_out: list[Failure] = field(default_factory=list)


class _Ended(Exception):
    """The pass ended, and only one was asked for."""


class StreamTask:
    def __init__(self, dataset: Any, form: Form, seed: int | None, skip: bool, endless: bool) -> None:
        self.dataset = dataset
        self._form, self._seed, self._skip, self._endless = form, seed, skip, endless
        self._terms = SampleTerms((), {}, "")
        self._pass = self._place = 0
        self._iterator: Iterator[Any] | None = None
        self._once = hasattr(dataset, "__next__")
        self._peeked: list[Any] = []
        self._snapshot_s = float("-inf")
        self._one_pass = False

    def settle(self, terms: SampleTerms) -> None:
        self._terms = terms
        self._form = replace(self._form, picks=terms.picks)

    def leave_generators(self) -> None:
        """Don't seed generators any more."""
        self._seed = None

    def rewind(self) -> None:
        """Back to the start, for a new reader. An iterator, which can be used once, continues where it is."""
        if not self._once:
            self._restart(0)

    def look(self) -> tuple[SampleTerms, bool]:
        """(terms of the first sample, whether it draws random numbers). The sample is read again later, or kept."""
        state = None
        if has_state(self.dataset):
            with suppress(Exception):  # some have no state before the first iteration
                state = self.dataset.state_dict()
        self._set(_BEGINNING)
        before = generators()
        iterator = iter(self.dataset)
        try:
            sample = next(iterator)
        except StopIteration:
            raise self._empty() from None
        except Exception as error:
            raise SampleFailed(Failure.of(0, error)) from error
        drew = drawn_since(before)
        if self._once:
            self._peeked.append(sample)
        elif state is not None:
            self.dataset.load_state_dict(state)
        try:
            form = self._form.settled(sample)
            row = form.row(sample)
        except DataError:
            raise
        except Exception as error:
            raise SampleFailed(Failure.of(0, error)) from error
        assert form.picks is not None
        return SampleTerms(form.picks, schema_of(row), "sample 0"), drew

    def __call__(self, job: Go | Skip | TakeSamples, memory: WorkerMemory) -> Any:
        if isinstance(job, TakeSamples):
            return self._take(job, memory)
        if isinstance(job, Go):
            return self._go(job, memory)
        self._restart(0)
        for _ in range(job.samples):
            self._good(memory, None, [], [])
        return None

    def _take(self, job: TakeSamples, memory: WorkerMemory) -> Reply:
        places, passes = np.empty(job.samples, dtype=np.int64), np.empty(job.samples, dtype=np.int64)
        taken = Reply(places, passes, self._snapshot())
        self._one_pass = job.one_pass
        for at in range(job.samples):
            try:
                places[at] = self._good(memory, at, taken.ends, taken.left_out)
            except _Ended:
                taken.places, taken.passes = places[:at], passes[:at]
                break
            passes[at] = self._pass
        return taken

    def _go(self, job: Go, memory: WorkerMemory) -> None:
        self._restart(job.number)
        if job.snapshot is not None:
            self._load(job.snapshot)
        while (self._pass, self._place) < (job.number, job.place):
            self._next(memory, [])
        if (self._pass, self._place) != (job.number, job.place):
            raise DataError(
                f"the run had read {job.place} samples of pass {job.number}, but this time that pass ended earlier: "
                "the dataset has changed; start a new run"
            )

    def _restart(self, number: int) -> None:
        if self._once and self._place:
            name = type(self.dataset).__name__
            raise DataError(f"{name} is an iterator, which can be used only once: samples that were read can't be read again")
        self._pass, self._place, self._iterator = number, 0, None

    def _load(self, snapshot: StreamState) -> None:
        self._pass, self._place = snapshot.number, snapshot.place
        self._set_epoch()
        if not snapshot.of_iterator:
            self.dataset.load_state_dict(snapshot.state)
        self._iterator = iter(self.dataset)
        if snapshot.of_iterator:
            self._iterator.load_state_dict(snapshot.state)  # type: ignore[union-attr]

    def _snapshot(self) -> StreamState | None:
        now_s = time.monotonic()
        if self._iterator is None or now_s - self._snapshot_s < _SNAPSHOT_S:
            return None
        of_iterator = has_state(self._iterator)
        if not of_iterator and not has_state(self.dataset):
            return None
        state = copy.deepcopy((self._iterator if of_iterator else self.dataset).state_dict())  # type: ignore[union-attr]
        self._snapshot_s = time.monotonic()
        return StreamState(self._pass, self._place, state, of_iterator)

    def _good(self, memory: WorkerMemory, at: int | None, ends: list[int], left_out: list[Failure]) -> int:
        """Store the next good sample in row `at` of the memory; returns its place in the pass."""
        while True:
            place = self._place
            try:
                sample = self._next(memory, ends)
                place = self._place - 1
                if at is not None or self._skip:  # only conversion shows whether it is bad
                    put(sample, self._form, self._terms.schema, self._terms.first, memory, at or 0)
                return place
            except (DataError, MemoryError, _Ended):
                raise
            except Exception as error:
                failure = Failure.of(place, error)
                if not self._skip:
                    raise SampleFailed(failure) from error
                if self._place == place:  # the iterator raised
                    self._place += 1
                    if hasattr(self._iterator, "gi_frame"):
                        raise SampleFailed(
                            replace(failure, why=f"{failure.why}; a generator can't continue after an error")
                        ) from error
                left_out.append(failure)
                if len(left_out) > 1000:
                    raise SampleFailed(replace(failure, why=f"1000 bad samples in one batch; {failure.why}")) from error

    def _next(self, memory: WorkerMemory, ends: list[int]) -> Any:
        while True:
            memory.at(self._place)
            if self._iterator is None:
                self._set_epoch()
                self._set(_BEGINNING)
                self._iterator = iter(self.dataset)
            if self._place:  # the first sample continues with the numbers drawn at the start of the pass
                self._set(self._place)
            try:
                sample = self._peeked.pop() if self._peeked else next(self._iterator)
            except StopIteration:
                ends.append(self._place)
                self._begin_next_pass()
                continue
            self._place += 1
            return sample

    def _begin_next_pass(self) -> None:
        name, came = type(self.dataset).__name__, f"{self._place} samples of pass {self._pass}"
        if self._place == 0:
            raise self._empty()
        if self._one_pass:
            raise _Ended
        if self._once:
            raise DataError(
                f"{name} is an iterator, which can be used only once; it ended after {self._place} samples: give an object "
                "whose __iter__ starts again, such as a torch IterableDataset, or a smaller budget"
            )
        if self._endless:
            raise DataError(
                f"length=inf means that {name} never ends, but it ended after {came}: remove length to start it again"
            )
        self._pass += 1
        self._place, self._iterator = 0, None

    def _empty(self) -> DataError:
        which = "" if self._pass == 0 else f" in pass {self._pass}"
        return DataError(f"{type(self.dataset).__name__} gave no sample{which}: its __iter__ ended immediately")

    def _set_epoch(self) -> None:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self._pass)

    def _set(self, number: int) -> None:
        if self._seed is not None:
            set_generators(self._seed, self._pass, number)


def has_state(owner: Any) -> bool:
    return hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")


class LookAtStream:
    """Runs `StreamTask.look` as a task, so that it has a time limit."""

    def __init__(self, task: StreamTask) -> None:
        self._task = task

    def __call__(self, job: TakeSamples, memory: WorkerMemory) -> tuple[SampleTerms, bool]:
        memory.at(0)
        return self._task.look()
