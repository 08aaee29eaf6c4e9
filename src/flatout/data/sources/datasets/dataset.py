"""Data from any torch Dataset. flatout shuffles; worker processes or threads read the samples.

Random numbers that a sample draws are a function of (seed, visit, number), whatever the number and kind of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from flatout.base.errors import DataError, UsageError
from flatout.data.data import Data
from flatout.data.files.bad import Bad, OnBad
from flatout.data.fitted.tensors import to_tensor
from flatout.data.normalize import Normalize
from flatout.data.order.keyed import Order, keyed
from flatout.data.source import ArraySource, Batch, Column, Source, Transform, hash_tensors
from flatout.data.sources.datasets.iterables import IterableSource, gathered
from flatout.data.sources.datasets.rowreader import RowReader
from flatout.data.sources.datasets.rowtask import DatasetPart
from flatout.data.sources.datasets.samples import Columns, Form, as_tensor
from flatout.data.transforms import parse_transforms

_HASH_ROWS = 16


class DatasetSource(Source):
    """Rows of one part of a `RowReader`.

    `varies`: samples change between visits, so their rows must not be kept. `alone`: samples draw, or may draw, from the random
    number generators of this process, so they are read while the training thread waits, not ahead of it.
    """

    def __init__(self, reader: RowReader, part: int = 0) -> None:
        self._reader, self._part = reader, part

    @property
    def schema(self) -> dict[str, Column]:
        return dict(self._reader.schema)

    def __len__(self) -> int:
        return self._reader.length(self._part)

    @property
    def varies(self) -> bool:
        return self._reader.varies

    @property
    def by_visit(self) -> bool:
        return True

    @property
    def alone(self) -> bool:
        return self._reader.alone

    @property
    def degraded(self) -> list[str]:
        return self._reader.degraded

    @property
    def bad(self) -> Bad:
        return self._reader.bad

    @property
    def workers(self) -> int:
        return self._reader.workers

    @property
    def processes(self) -> bool:
        """Whether the workers are processes; otherwise they are threads."""
        return self._reader.processes

    def resize(self, workers: int) -> None:
        """May be called while rows are read; batches do not change."""
        self._reader.resize(workers)

    def close(self) -> None:
        """End the workers; a later read starts new ones."""
        self._reader.close()

    def read(self, rows: Tensor) -> Batch:
        return self.read_visits(rows, torch.zeros_like(rows))

    def read_into(self, rows: Tensor, batch: Batch) -> None:
        self.read_visits_into(rows, torch.zeros_like(rows), batch)

    def read_visits(self, rows: Tensor, visits: Tensor) -> Batch:
        batch = {name: torch.empty((len(rows), *c.shape), dtype=c.dtype) for name, c in self.schema.items()}
        self.read_visits_into(rows, visits, batch)
        return batch

    def read_visits_into(self, rows: Tensor, visits: Tensor, batch: Batch) -> None:
        self._reader.read(self._part, rows, visits, batch)

    def column(self, name: str, rows_at_once: int = 1024) -> Tensor:
        """One column of all rows. The other columns are not kept in memory."""
        starts = range(0, len(self), rows_at_once)
        return torch.cat([self.read(torch.arange(s, min(s + rows_at_once, len(self))))[name] for s in starts])

    def fingerprint(self) -> str:
        """Of the length and a few evenly spaced samples: reading all of them could take as long as an epoch."""
        rows = torch.arange(min(_HASH_ROWS, len(self))) * (len(self) - 1) // max(1, min(_HASH_ROWS, len(self)) - 1)
        sample = self._reader.read_here(self._part, rows) if self._reader.repeats else {}
        kinds = torch.tensor([len(self), *str(self.schema).encode()])
        return hash_tensors({**sample, " kinds": kinds})


def dataset(
    train: Any,
    *,
    validation: Any = None,
    holdout: float = 0.0,
    columns: Columns | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    workers: int | str = "auto",
    processes: bool = True,
    classes: int | None = None,
    length: float | None = None,
    timeout: float = 60,
    on_bad: str = "error",
    normalize: str | Mapping[str, Any] | Transform | None = None,
    augment: Sequence[Any] = (),
    seed: int = 0,
    draw: str | Any = "shuffle",
) -> Data:
    """A torch Dataset, map-style or iterable, or any object with the same methods.

    A sample is (x, y), a mapping, or x alone, made of tensors, arrays, numbers or PIL images (which become bytes, channels
    first). `columns` names its parts: a list with one name each, or a mapping such as {"x": "image", "y": "label"}. `collate`
    turns a list of one sample into a row. `holdout` is the share of samples for validation, chosen by `seed`; `validation` is
    a separate Dataset for it.

    `workers` is the number of worker processes, or threads if `processes` is False; with 0, each batch is read when it is
    needed. A sample that takes longer than `timeout` seconds is an error. Iterables keep their own order and are read by one
    worker; `length` is their number of samples per epoch, math.inf if they never end.
    """
    _check_arguments(train, workers, timeout, holdout, validation)
    bad, form = Bad(OnBad(on_bad)), Form(columns, collate)
    weights = draw if isinstance(draw, str) else to_tensor(draw, "draw")
    if is_iterable(train):
        if holdout or not isinstance(draw, str) or draw != "shuffle":
            asked = "holdout" if holdout else "draw"
            raise UsageError(
                f"{asked}: an iterable dataset keeps its own order and can't be split or drawn from; remove {asked}"
            )
        in_process = processes and workers != 0
        stream = IterableSource(train, form, length=length, in_process=in_process, timeout_s=timeout, bad=bad, seed=seed)
        sources: list[Source] = [stream]
    else:
        parts = [DatasetPart(train, _length_of(train, length))]
        if holdout:
            kept, set_aside = _split(parts[0].length, holdout, seed)
            parts = [DatasetPart(train, len(numbers), numbers.numpy()) for numbers in (kept, set_aside)]
            if isinstance(weights, Tensor) and len(weights) == len(kept) + len(set_aside):
                weights = weights.index_select(0, kept)
        elif validation is not None and not is_iterable(validation):
            parts.append(DatasetPart(validation, _length_of(validation, None)))
        held_in_memory = [in_memory(part, form) for part in parts]
        if all(held is not None for held in held_in_memory):
            sources = [held for held in held_in_memory if held is not None]
        else:
            reader = RowReader(parts, form, workers, processes, timeout, bad, seed)
            sources = [DatasetSource(reader, part) for part in range(len(parts))]
    if validation is not None and len(sources) == 1:
        sources.append(_validation(validation, form, timeout, bad, seed))
    count, labels = _classes(train, classes)
    return Data(
        train=sources[0],
        validation=sources[1] if len(sources) > 1 else None,
        prepare=_normalizer(normalize, sources[0]),
        augment=parse_transforms(augment),
        draw=weights,
        classes=count,
        labels=labels,
    )


def in_memory(part: DatasetPart, form: Form) -> ArraySource | None:
    """The tensors of a TensorDataset, so that whole batches are gathered at once. None for other datasets."""
    if type(part.dataset) is not TensorDataset or form.collate is not None:
        return None
    held = {}
    for name, key in form.settled(part.dataset[0]).picks or ():
        column = as_tensor(part.dataset.tensors[int(key)], name, key)
        held[name] = column if part.numbers is None else column.index_select(0, torch.from_numpy(part.numbers))
    return ArraySource(held)


def is_iterable(dataset: Any) -> bool:
    """Whether samples can only be iterated over, not read by number."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def _check_arguments(train: Any, workers: int | str, timeout: float, holdout: float, validation: Any) -> None:
    for name, given in (("train", train), ("validation", validation)):
        if isinstance(given, DataLoader):
            raise UsageError(
                f"{name}: expected a Dataset, got a DataLoader; give {name}.dataset: flatout shuffles and makes batches itself"
            )
        if isinstance(given, str | bytes | Mapping | Tensor) or type(given).__module__ == "numpy":
            came = type(given).__name__
            raise UsageError(f"{name}: expected a torch Dataset, got a {came}; for arrays and files use fo.data.arrays")
        if given is not None and not hasattr(given, "__getitem__") and not hasattr(given, "__iter__"):
            raise UsageError(f"{name}: a Dataset needs __getitem__ or __iter__; {type(given).__name__} has neither")
    if workers != "auto" and (isinstance(workers, str | bool) or workers < 0):
        raise UsageError(f"workers is 'auto' or a number, 0 or more; got {workers!r}")
    if not timeout > 0:
        raise UsageError(f"timeout is the number of seconds a sample may take, above 0; got {timeout}")
    if holdout and validation is not None:
        raise UsageError("holdout and validation both choose the validation data: give only one of them")


def _length_of(dataset: Any, length: float | None) -> int:
    try:
        there = int(length) if length is not None else len(dataset)
    except (TypeError, NotImplementedError, OverflowError) as error:
        name = type(dataset).__name__
        raise DataError(f"{name} has no length ({error}): add __len__, or set length= to a whole number") from error
    if there < 1:
        raise DataError(f"the dataset is empty: {type(dataset).__name__} has {there} samples")
    return there


def _split(rows: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    if not 0 < share < 1:
        raise DataError(f"holdout is the share of samples for validation, between 0 and 1; got {share}")
    if rows < 2:
        raise DataError(f"holdout={share} needs at least 2 samples, got {rows}")
    count = min(max(1, round(rows * share)), rows - 1)
    order = Order(keyed(seed, "holdout"), (rows,)).rows(0, rows)
    return order[count:].sort().values, order[:count].sort().values


def _validation(validation: Any, form: Form, timeout: float, bad: Bad, seed: int) -> Source:
    if is_iterable(validation):
        return gathered(IterableSource(validation, form, in_process=False, timeout_s=timeout, bad=bad, seed=seed))
    return DatasetSource(RowReader([DatasetPart(validation, _length_of(validation, None))], form, 0, False, timeout, bad, seed))


def _classes(dataset: Any, told: int | None) -> tuple[int | None, tuple[str, ...] | None]:
    """As given, or from the dataset's `classes`, or the largest of its `targets` plus one."""
    if told is not None:
        return told, None
    while dataset is not None:
        names = getattr(dataset, "classes", None)
        if isinstance(names, Sequence) and names and all(isinstance(name, str) for name in names):
            return len(names), tuple(names)
        targets = getattr(dataset, "targets", None)
        if isinstance(targets, Sequence | Tensor) and len(targets):
            listed = torch.as_tensor(targets)
            if listed.dim() == 1 and not listed.is_floating_point():
                return int(listed.max()) + 1, None
        dataset = getattr(dataset, "dataset", None)  # of a Subset
    return None, None


def _normalizer(normalize: str | Mapping[str, Any] | Transform | None, source: Source) -> tuple[Transform, ...]:
    if normalize is None:
        return ()
    if normalize == "auto":
        if source.stream is not None:
            raise UsageError("normalize='auto' reads all samples once, but an iterable may never end: give mean and std")
        return (Normalize.fit(source),)
    if isinstance(normalize, Mapping):
        return parse_transforms([{"normalize": normalize}])
    if isinstance(normalize, str):
        raise UsageError(f"normalize is 'auto', or a mapping with scale, mean and std; got {normalize!r}")
    return (normalize,)
