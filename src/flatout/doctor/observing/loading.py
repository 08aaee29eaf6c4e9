"""Observes DataLoaders: how long the script waits for each batch, and what the workers do."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, strided
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import _BaseDataLoaderIter

from flatout.doctor import where
from flatout.doctor.marks import DATA, Marks
from flatout.doctor.observing import fetching
from flatout.doctor.patches import Patches
from flatout.doctor.seen import Pass, ScriptLoader, ScriptRecord

_MOST_WAITS = 10_000
_DEEP = 4
_MOST_PASSES, _MOST_ROWS = 200, 1_000_000


@dataclass
class _Open:
    """A pass that has begun."""

    where: str
    loader: ScriptLoader
    indices: tuple[int, frozenset[int]] | None
    steps: int
    backwards: int
    calls: int


class LoaderObserver:
    def __init__(self, marks: Marks, seen: ScriptRecord, folder: Path) -> None:
        """Workers write their reports to `folder`."""
        self._marks, self._seen, self._folder = marks, seen, folder
        self._main = threading.get_ident()
        self._made: WeakKeyDictionary[DataLoader[Any], str] = WeakKeyDictionary()
        self._known: WeakKeyDictionary[DataLoader[Any], ScriptLoader] = WeakKeyDictionary()
        self._held_first: WeakKeyDictionary[DataLoader[Any], int] = WeakKeyDictionary()
        self._of_iterator: WeakKeyDictionary[Any, ScriptLoader] = WeakKeyDictionary()
        self._at_start: WeakSet[Any] = WeakSet()  # iterators before their first batch
        self._passes: WeakKeyDictionary[Any, _Open] = WeakKeyDictionary()  # by iterator
        self._bases: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # datasets below all Subsets, numbered
        self._rows: WeakKeyDictionary[DataLoader[Any], tuple[int, frozenset[int]] | None] = WeakKeyDictionary()
        self._trained_on: tuple[int, frozenset[int]] | None = None  # of the last pass that trained
        self._trained: int | None = None  # its loader
        self._inside = False
        self.counting = False

    def install(self, patches: Patches) -> None:
        fetching.report_to(self._folder)
        patches.wrap(worker, "_worker_loop", lambda original: fetching.observed_worker_loop)
        patches.wrap(DataLoader, "__init__", self._noting_where)
        patches.wrap(DataLoader, "__iter__", self._beginning)
        patches.wrap(_BaseDataLoaderIter, "__next__", self._waiting)

    def collect(self) -> None:
        self._seen.fetched = fetching.reports(self._folder)
        for loader, known in self._known.items():
            known.fills = _held(loader.dataset) > self._held_first[loader]

    @property
    def ahead(self) -> int:
        """Batches that may be ready in advance: steps that use them do not show the time to read them."""
        return max((loader.ahead for loader in self._seen.loaders), default=0)

    def _noting_where(self, original: Any) -> Any:
        def __init__(loader: DataLoader[Any], *args: Any, **named: Any) -> None:
            original(loader, *args, **named)
            self._made[loader] = where.caller()

        return __init__

    def _beginning(self, original: Any) -> Any:
        def __iter__(loader: DataLoader[Any]) -> Any:
            if threading.get_ident() != self._main or self._inside:
                return original(loader)
            known = self._known.get(loader)
            if known is None:
                known = self._known[loader] = self._described(loader)
                self._seen.loaders.append(known)
                self._held_first[loader] = _held(loader.dataset)
            fetching.loader_number = self._seen.loaders.index(known)
            began_s = time.perf_counter()
            with self._marks.mark(DATA):
                iterator = original(loader)
            known.starts_s.append(time.perf_counter() - began_s)
            self._note_wait(known, known.starts_s[-1])
            self._of_iterator[iterator] = known
            known.passes_in_steps += self.counting
            if len(self._seen.passes) < _MOST_PASSES:
                seen = self._seen
                if loader not in self._rows:
                    self._rows[loader] = self._rows_of(loader)
                self._passes[iterator] = _Open(
                    where.caller(), known, self._rows[loader], seen.steps, seen.backwards, seen.outer_calls
                )
            self._at_start.add(iterator)
            return iterator

        return __iter__

    def _waiting(self, original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            known = self._of_iterator.get(iterator)
            if known is None or self._inside or threading.get_ident() != self._main:
                return original(iterator)
            self._inside = True
            began_s = time.perf_counter()
            try:
                with self._marks.mark(DATA):
                    batch = original(iterator)
            except StopIteration:
                known.ends_s.append(time.perf_counter() - began_s)
                self._note_pass(iterator)
                raise
            finally:
                self._inside = False
            waited_s = time.perf_counter() - began_s
            one = self._passes.get(iterator)
            if one is not None and self._seen.steps > one.steps:
                self._trained_on, self._trained = one.indices, self._seen.loaders.index(one.loader)
                self._passes.pop(iterator)
            if iterator in self._at_start:
                self._at_start.discard(iterator)
                known.firsts_s.append(waited_s)
            if len(known.waits_s) < _MOST_WAITS:
                known.waits_s.append(waited_s)
            self._note_wait(known, waited_s)
            if self.counting:
                known.samples += _rows(batch)
                known.in_steps += 1
                known.batch_bytes = max(known.batch_bytes, _size_bytes(batch))
            return batch

        return __next__

    def _note_pass(self, iterator: Any) -> None:
        """A pass has ended in which no optimizer made a step; if the model was called, it was an evaluation."""
        one = self._passes.pop(iterator, None)
        seen = self._seen
        if one is None or seen.outer_calls == one.calls or seen.backwards != one.backwards or seen.steps != one.steps:
            return
        if self._trained is None:
            return
        number, rows, trained = seen.loaders.index(one.loader), one.indices, self._trained_on
        shared = -1
        if rows is not None and trained is not None:
            shared = len(rows[1] & trained[1]) if rows[0] == trained[0] else 0
        seen.passes.append(Pass(one.where, number, self._trained, -1 if rows is None else len(rows[1]), shared))

    def _rows_of(self, loader: DataLoader[Any]) -> tuple[int, frozenset[int]] | None:
        """Which rows of which dataset a pass reads; None if that can't be known."""
        sampler = loader.sampler
        plain = isinstance(sampler, RandomSampler | SequentialSampler | SubsetRandomSampler | WeightedRandomSampler)
        if isinstance(loader.dataset, IterableDataset) or not plain:
            return None
        dataset: Any = loader.dataset
        try:
            rows: Any = sampler.indices if isinstance(sampler, SubsetRandomSampler) else range(len(dataset))
            if len(rows) > _MOST_ROWS:
                return None
            while isinstance(dataset, Subset):
                rows, dataset = [dataset.indices[row] for row in rows], dataset.dataset
            number = self._bases.setdefault(dataset, len(self._bases))
            return number, frozenset(int(row) for row in rows)
        except Exception:  # the script's dataset may have no length or refuse weak references
            return None

    def _note_wait(self, known: ScriptLoader, seconds: float) -> None:
        if self.counting:
            now = time.time_ns()
            known.waited.append((now - int(1e9 * seconds), now))

    def _described(self, loader: DataLoader[Any]) -> ScriptLoader:
        return ScriptLoader(
            where.caller(),
            self._made.get(loader, ""),
            loader.num_workers,
            loader.batch_size,
            loader.pin_memory,
            loader.persistent_workers,
            type(loader.dataset).__name__,
            isinstance(loader.dataset, IterableDataset),
            context=str(getattr(loader.multiprocessing_context, "_name", "") or ""),
            in_order=isinstance(loader.sampler, SequentialSampler),
            batched=loader.batch_sampler is not None,
            ahead=loader.num_workers * (loader.prefetch_factor or 0),
            length=_length(loader),
            told_epoch=callable(getattr(loader.dataset, "set_epoch", None)),
        )


def _held(dataset: Any, depth: int = 0) -> int:
    """Number of entries in a dataset's lists and dicts, including a wrapped dataset's."""
    held = getattr(dataset, "__dict__", {}).values()
    inner = [value for value in held if isinstance(value, Dataset) and depth < _DEEP]
    return sum(len(value) for value in held if isinstance(value, list | dict | set)) + sum(
        _held(one, depth + 1) for one in inner
    )


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except Exception:  # the script's dataset or sampler may have no length
        return None


def _size_bytes(batch: Any) -> int:
    return sum(one.nbytes for one in tree_leaves(batch) if isinstance(one, Tensor) and one.layout is strided)


def _rows(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor."""
    if isinstance(batch, Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    for part in parts:
        if rows := _rows(part):
            return rows
    return 0
