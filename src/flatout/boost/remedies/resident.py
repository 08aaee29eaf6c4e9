"""Keeps the whole dataset on the model's device, if it fits and is the same each epoch: a batch is then one index operation.

Samples are read once from the dataset and collated by the loader's collate function, provided that it treats each sample
independently. The script's sampler still chooses the samples of each batch, and the loader draws from the same random
generators.
"""

from __future__ import annotations

import inspect
import os
import random
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fcntl import F_GETFL, fcntl
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.dataset_state import dataset_state
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.account import DATA
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.host import affinity_cores, free_host_bytes

_WAITS = 0.05  # of a step: less waiting is not worth a trial
_SHARE_OF_MEMORY = 0.3
_TRIED_ROWS = 8
_AT_ONCE = 512
_SLOWEST_S = 120.0
_BETWEEN_LOOKS = 20  # times the duration of a complete check of the dataset
_LOOKED_AT_AFTER = 20 * _TRIED_ROWS  # rows: a check takes a twentieth of the time to read them
_BATCHES_AT_ONCE, _PICKED_BYTES = 32, 16 << 20
_LONG_S, _MOST_WORKERS = 2.0, 16
_WRITTEN_TO = (1, 2)  # stdout and stderr, however they were opened
_UNDER_WAY_BYTES = 32 << 20  # limit for batches in workers: many containers have little shared memory


class Resident(Remedy):
    name = "resident_data"
    computes_the_same = True
    values = '"cuda" or "cpu"'
    feeds = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        loader = diagnosis.case.training_loader
        if loader is None or loader.iterable or not loader.batched or loader.told_epoch:
            return []
        case = diagnosis.case
        gain = predicted(diagnosis, "no_workers", "slow_transform", "pageable_copy", "blocking_copy", "too_many_workers")
        if case.share(case.rows[DATA]) > _WAITS:  # transferring batches from workers takes time as well
            gain = max(gain or 1.0, case.step_ms / max(case.step_ms - case.rows[DATA], 0.02 * case.step_ms))
        return [] if gain is None else [Offer(self.name, case.seen.device, "off", gain)]

    def takes(self, value: Any) -> bool:
        return value in ("cuda", "cpu")

    def apply(self, value: Any, hooks: Hooks) -> None:
        hooks.patches.wrap(DataLoader, "__iter__", lambda original: _from_memory(original, torch.device(value)))


@dataclass(frozen=True)
class _Source:
    """Where a loader gets its batches from."""

    dataset: Any
    collate: Callable[[list[Any]], Any]
    iterate: Callable[[DataLoader[Any]], Any]
    has_workers: bool  # the script's loader has workers, so other processes may read the dataset

    def batch(self, rows: Iterable[int]) -> Any:
        return self.collate([self.dataset[row] for row in rows])


@dataclass
class _Kept:
    kind: tuple[type, int]
    dataset: Callable[[], Any]  # returns None once the dataset is deleted
    collate: Callable[[], Any]  # the same
    columns: list[Tensor] | None  # None if the data can't be kept in memory
    form: Any = None
    state: Any = None  # of the dataset when it was last read
    whole: Any = None  # the same, including large arrays
    whole_at_s: float = 0.0
    whole_took_s: float = 0.0
    served: int = 0  # rows since the last check
    looks: int = 0

    def forget(self) -> None:
        self.columns = None

    def note_state(self, dataset: Any, *, whole: bool) -> None:
        """Reading may change the dataset, too: it may count its reads, for example."""
        before, self.state = self.state, dataset_state(dataset)
        if whole or self.state != before:
            self.whole = self._looked_through(dataset)

    def is_changed(self, dataset: Any) -> bool:
        return dataset_state(dataset) != self.state or (self.is_whole_due() and self._looked_through(dataset) != self.whole)

    def is_whole_due(self) -> bool:
        """Not in every epoch, because epochs may be short and a complete check may take long."""
        return time.monotonic() - self.whole_at_s >= _BETWEEN_LOOKS * self.whole_took_s

    def _looked_through(self, dataset: Any) -> Any:
        began_s = time.monotonic()
        state = dataset_state(dataset, whole=True)
        self.whole_at_s = time.monotonic()
        self.whole_took_s = self.whole_at_s - began_s
        return state


_kept: dict[int, _Kept] = {}  # by the dataset's id
_made_anew: set[tuple[type, int]] = set()  # datasets recreated for each epoch: not worth reading completely


def _kept_of(source: _Source, device: torch.device) -> _Kept | None:
    dataset = source.dataset
    try:
        kind = type(dataset), len(dataset)
    except (TypeError, NotImplementedError):  # without a length, only the sampler knows the samples
        return None
    if kind in _made_anew or callable(getattr(dataset, "set_epoch", None)):  # its data differs in each epoch
        return None
    known = _kept.get(id(dataset))
    if known is not None and known.dataset() is dataset:
        if known.collate() != source.collate:
            return None
        if known.columns is not None and not (known.kind == kind and _still_holds(known, known.columns, source)):
            warnings.warn(
                f"the dataset {kind[0].__name__} has changed: from here on it is read sample by sample, not from memory",
                stacklevel=3,
            )
            known.forget()
        return known
    if any(one.kind == kind and (one.dataset() is None or not _can_go(dataset)) for one in _kept.values()):
        _made_anew.add(kind)
        for key in [key for key, one in _kept.items() if one.kind == kind]:
            del _kept[key]
        return None
    found = _Kept(kind, lambda: dataset, _loosely(source.collate), *_columns(source, len(dataset), device))
    found.note_state(dataset, whole=True)
    if _can_go(dataset):
        found.dataset = weakref.ref(dataset, lambda _: found.forget())
    _kept[id(dataset)] = found
    return found


def _can_go(dataset: Any) -> bool:
    """Does it support weak references? A list does not."""
    return getattr(type(dataset), "__weakrefoffset__", 0) != 0


def _loosely(collate: Callable[..., Any]) -> Callable[[], Any]:
    """A weak reference: a method of the dataset would keep the dataset alive."""
    if inspect.ismethod(collate):
        return weakref.WeakMethod(collate)
    return weakref.ref(collate) if _can_go(collate) else lambda: collate


def _from_memory(original: Any, device: torch.device) -> Any:
    def __iter__(loader: DataLoader[Any]) -> Any:
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            return original(loader)
        kept = _kept_of(_Source(loader.dataset, loader.collate_fn, original, loader.num_workers > 0), device)
        return original(loader) if kept is None or kept.columns is None else _batches(loader, kept, kept.columns)

    return __iter__


def _still_holds(kept: _Kept, columns: list[Tensor], source: _Source) -> bool:
    """Between two epochs: checks the dataset's state, and reads some samples again, others each time."""
    count = len(columns[0])
    whole = kept.is_whole_due()
    if kept.is_changed(source.dataset):
        return False
    if kept.served < min(count, _LOOKED_AT_AFTER):  # not in every short epoch: reading samples would cost too much
        return True
    rows = torch.tensor([(at * count // _TRIED_ROWS + kept.looks) % count for at in range(_TRIED_ROWS)])
    kept.served, kept.looks = 0, kept.looks + 1
    states = _random_states()
    try:
        read = _taken_apart(source.batch(rows.tolist()))[0]
        if read is None or len(read) != len(columns) or not _are_equal(states, _random_states()):
            return False
        there = rows.to(columns[0].device)
        return all(torch.equal(part, column.index_select(0, there).cpu()) for part, column in zip(read, columns, strict=True))
    except Exception:  # the script's own epoch will raise the same error
        return False
    finally:
        _restore(states)
        kept.note_state(source.dataset, whole=whole)


def _batches(loader: DataLoader[Any], kept: _Kept, columns: list[Tensor]) -> Any:
    # a loader draws one seed at the start of each epoch, even without workers
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    device = columns[0].device
    row_bytes = sum(column.nbytes for column in columns) // len(columns[0])
    order = iter(loader.batch_sampler or ())
    # on a device, rows of many batches are indexed at once, because each call has the same overhead. The script's own sampler
    # is never read ahead, because it may depend on training
    at_once = _BATCHES_AT_ONCE if device.type == "cuda" and _is_known(loader.batch_sampler) else 1
    while True:
        ahead: list[list[int]] = []
        while len(ahead) < at_once and sum(map(len, ahead)) * row_bytes < _PICKED_BYTES:
            if (chosen := next(order, None)) is None:
                break
            ahead.append(list(chosen))
        if not ahead:
            return
        flat = torch.tensor([index for part in ahead for index in part])
        flat = flat.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else flat
        sizes = [len(part) for part in ahead]
        for parts in zip(*(column.index_select(0, flat).split(sizes) for column in columns), strict=True):
            kept.served += len(parts[0])
            yield kept.form(list(parts))


def _is_known(sampler: Any) -> bool:
    """Is it one of torch's samplers, and its inner sampler, too?"""
    inner = getattr(sampler, "sampler", None)
    return type(sampler).__module__.startswith("torch.utils.data.") and (inner is None or _is_known(inner))


def _columns(source: _Source, count: int, device: torch.device) -> tuple[list[Tensor] | None, Any]:
    """All samples as one tensor per column on the training device; None if they differ between reads or do not fit."""
    states = _random_states()
    try:
        return _all_read(source, count, device)
    except Exception:  # a batch that the script never reads, for example of images of different sizes
        return None, None
    finally:
        _restore(states)


def _all_read(source: _Source, count: int, device: torch.device) -> tuple[list[Tensor] | None, Any]:
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else free_host_bytes() // _processes()
    files = _open_files()
    if not count or not _is_the_same_each_time(source, count):
        return None, None
    parts, form = _taken_apart(source.batch([0]))
    if parts is None:
        return None, None
    wanted = count * sum(part.nbytes for part in parts)
    if wanted > _SHARE_OF_MEMORY * free:
        return None, None
    columns = [torch.empty((count, *part.shape[1:]), dtype=part.dtype, device=device) for part in parts]
    began_s, start = time.monotonic(), 0
    for rows, batch in _read(source, count, wanted // count, files):
        read = _taken_apart(batch)[0]
        if read is None or len(read) != len(columns) or not all(map(_is_like, read, columns)):
            return None, None
        if any(len(part) != rows for part in read):  # collate has dropped samples
            return None, None
        for column, part in zip(columns, read, strict=True):
            column[start : start + rows] = part.to(device)
        start += rows
        if time.monotonic() - began_s > _SLOWEST_S:
            return None, None
    return columns, form


def _processes() -> int:
    """Of the script; all of them may be on this machine, and each keeps the data."""
    is_one_of_several = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if is_one_of_several else 1


def _is_like(part: Tensor, column: Tensor) -> bool:
    return part.shape[1:] == column.shape[1:] and part.dtype == column.dtype


def _read(source: _Source, count: int, row_bytes: int, files: Mapping[str, tuple[str, int]]) -> Iterator[tuple[int, Any]]:
    """All samples in order, in parts, each with its number of rows; in workers if it takes long. `files`: open files before the
    first read. If the dataset has opened or read one since, workers would share it, so none are used."""
    began_s, done = time.monotonic(), min(_AT_ONCE, count)
    first = source.batch(range(done))
    rest_s = (time.monotonic() - began_s) * (count - done) / done
    workers = min(affinity_cores(), _MOST_WORKERS) if source.has_workers and files == _open_files() else 1
    yield done, first
    if workers > 1 and rest_s > _LONG_S:
        rows = max(1, min(_AT_ONCE, _UNDER_WAY_BYTES // (2 * workers * max(row_bytes, 1))))  # a loader prefetches two a worker
        with suppress(Exception):  # the dataset may hold what only this process can use: a device
            loader = DataLoader(
                Subset(source.dataset, range(done, count)),
                rows,
                collate_fn=source.collate,
                num_workers=workers,
                timeout=_SLOWEST_S,
                multiprocessing_context="fork",  # a fork does not run the script again
                generator=torch.Generator(),  # so that the loader does not draw from the script's generator
            )
            for batch in source.iterate(loader):
                yield min(rows, count - done), batch
                done += min(rows, count - done)
    for start in range(done, count, _AT_ONCE):
        rows = min(_AT_ONCE, count - start)
        yield rows, source.batch(range(start, start + rows))


def _open_files() -> dict[str, tuple[str, int]]:
    """Open files and their read positions, on Linux only. Positions of files opened for writing are ignored."""
    found = {}
    for entry in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # the file was closed meanwhile
            number = int(entry.name)
            is_read = fcntl(number, F_GETFL) & os.O_ACCMODE != os.O_WRONLY and number not in _WRITTEN_TO
            is_file = S_ISREG(os.fstat(number).st_mode)
            found[entry.name] = os.readlink(entry), os.lseek(number, 0, os.SEEK_CUR) if is_file and is_read else 0
    return found


def _is_the_same_each_time(source: _Source, count: int) -> bool:
    """Reads some samples twice, with different random states to detect augmentation. The second time one by one, to detect
    batches that depend on all their samples, such as padded ones. Restores the random states."""
    states = _random_states()
    rows = [round(k * (count - 1) / (_TRIED_ROWS - 1)) for k in range(_TRIED_ROWS)]
    try:
        together = _taken_apart(source.batch(rows))[0]
        if not _are_equal(states, _random_states()):  # reading drew random numbers
            return False
        torch.manual_seed(torch.initial_seed() ^ 0x5EED)
        random.seed(0x5EED)
        np.random.seed(0x5EED)
        alone = [_taken_apart(source.batch([row]))[0] for row in rows]
        if together is None or any(parts is None or len(parts) != len(together) for parts in alone):
            return False
        columns = zip(*(parts for parts in alone if parts is not None), strict=True)
        return all(torch.equal(part, torch.cat(column)) for part, column in zip(together, columns, strict=True))
    finally:
        _restore(states)


def _random_states() -> tuple[Any, ...]:
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), on_devices, random.getstate(), np.random.get_state()


def _are_equal(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    same = torch.equal(a[0], b[0]) and all(map(torch.equal, a[1], b[1])) and a[2] == b[2]
    return same and a[3][2] == b[3][2] and np.array_equal(a[3][1], b[3][1])


def _restore(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    if states[1]:
        torch.cuda.set_rng_state_all(states[1])
    random.setstate(states[2])
    np.random.set_state(states[3])


def _taken_apart(batch: Any) -> tuple[list[Tensor] | None, Any]:
    """The tensors of a batch, and a function that builds a batch from such tensors; None for other batches."""
    if type(batch) is Tensor:
        return [batch], lambda parts: parts[0]
    if type(batch) is dict and all(type(part) is Tensor for part in batch.values()):
        names = list(batch)
        return list(batch.values()), lambda parts: dict(zip(names, parts, strict=True))
    if type(batch) in (list, tuple) and all(type(part) is Tensor for part in batch):
        kind = type(batch)
        return list(batch), lambda parts: kind(parts)
    return None, None
