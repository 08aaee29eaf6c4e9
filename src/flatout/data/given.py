"""Data as people have it in Python: a DataFrame, (x, y), columns by name, a Dataset, a DataLoader. Makes `Data` of it.

kind_of(given)      table       a DataFrame of pandas or Polars, a pyarrow.Table, (DataFrame, column), columns by name
                    arrays      (x, y), or columns by name with an x; an array alone
                    dataset     a torch Dataset, map-style or iterable, a DataLoader, a `datasets.Dataset`
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from flatout.base.errors import UsageError
from flatout.data.checks import check_labels
from flatout.data.data import Data
from flatout.data.source import Source
from flatout.data.sources.arrays import arrays
from flatout.data.sources.tables.frames import arrow_table, is_lazy, is_table

FORMS = (
    "a DataFrame, (x, y), columns such as {'x': x, 'y': y}, a torch Dataset, a DataLoader, a path, "
    "or what fo.data.arrays(...) and the like return"
)
_ROWS_AT_ONCE, _MOST_S = 256, 20.0  # to count the classes of a Dataset
_LABELS = ("label", "labels", "fine_label")  # columns of a `datasets.Dataset` that are one unless another is named
_TRAIN, _HELD = "train", ("validation", "valid", "val", "dev", "test")


def kind_of(given: Any) -> str | None:
    """table, arrays or dataset; None for what is no data."""
    if is_splits(given):
        return kind_of(given[_TRAIN])
    if _is_from_datasets(given):
        return "dataset"
    if is_table(given):
        return "table"
    if isinstance(given, Mapping):
        return "arrays" if "x" in given else "table"
    if is_pair(given):
        return "table" if is_table(given[0]) else "arrays"
    if isinstance(given, np.ndarray | Tensor):
        return "arrays"
    if given is None or isinstance(given, str | bytes | int | float | type) or callable(given):
        return None
    if is_lazy(given):
        return None
    samples = hasattr(given, "__getitem__") or hasattr(given, "__iter__")
    return "dataset" if samples and not _is_column(given) else None


def is_pair(given: Any) -> bool:
    """(x, y): two arrays, two lists, or a table and a column."""
    pair = isinstance(given, tuple) or (isinstance(given, list) and all(hasattr(one, "shape") for one in given))
    return pair and len(given) == 2 and (is_table(given[0]) or all(_is_array(one) for one in given))


def is_splits(given: Any) -> bool:
    """{"train": ..., "validation": ...}, each in a form of its own, such as a `datasets.DatasetDict`."""
    known = (_TRAIN, *_HELD)
    return isinstance(given, Mapping) and _TRAIN in given and all(name in known for name in given)


def is_samples(given: Any) -> bool:
    """A Dataset or a DataLoader, and no list of rows."""
    return not isinstance(given, list | tuple | Mapping) and kind_of(given) == "dataset"


def batch_of(given: Any) -> int | None:
    """The batch size of a DataLoader; None for anything else."""
    if not isinstance(given, DataLoader):
        return None
    size = given.batch_size if given.batch_size is not None else getattr(given.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def as_data(given: Any, **options: Any) -> Data:
    """`options` are those of fo.data.table, fo.data.arrays or fo.data.dataset, whichever is used for what is given."""
    if isinstance(given, Data):
        if options:
            raise UsageError(f"the data is made already: set {', '.join(options)} where it is made, in fo.data")
        return given
    if is_splits(given):
        train, parts = split_parts(given)
        return as_data(train, **{**parts, **options})
    kind = kind_of(given)
    if kind == "table":
        return _table(given, options)
    if kind is None:
        raise UsageError(f"expected {FORMS}; got {_words(given)}")
    if "label" in options and not _is_from_datasets(given):
        raise UsageError(f"label names a column of a table, and {_words(given)}")
    if kind == "dataset":
        return _dataset(given, options)
    if isinstance(given, Mapping):
        return arrays(dict(given), **options)
    return arrays(*given, **options) if is_pair(given) else arrays(given, **options)


def joined(pair: Any, label: str | None = None) -> tuple[Any, str]:
    """(DataFrame, column) as one table, and the name of the label in it: `label`, the column's own name, or "label"."""
    import pyarrow as pa

    table, column = arrow_table(pair[0]), pair[1]
    own = getattr(column, "name", None)
    name = label or (str(own) if own is not None else "label")
    if name in table.column_names:
        raise UsageError(f"the label {name!r} is also a column of the table: drop it there, or give the whole table and label=")
    values = column.detach().cpu().numpy() if isinstance(column, Tensor) else column
    try:
        target = pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(f"y is no column of values: {error}") from error
    if len(target) != table.num_rows:
        raise UsageError(f"x has {table.num_rows} rows and y has {len(target)}: give one label a row")
    return table.append_column(name, target), name


def _table(given: Any, options: dict[str, Any]) -> Data:
    from flatout.data.sources.tables.table import table  # kinds of data load when they are used

    if not is_pair(given):
        if options.get("label") is None:
            names = [str(name) for name in (given if isinstance(given, Mapping) else arrow_table(given).column_names)]
            raise UsageError(
                f"a table needs a label, the column to learn: {{'table': df, 'label': {names[-1]!r}}}, or "
                f"fo.run(data=df, label={names[-1]!r}); its columns are {', '.join(names)}"
            )
        return table(given, **_as_text(options))
    whole, label = joined(given, options.get("label"))
    held = {part: joined(options[part], label)[0] for part in ("validation", "test") if is_pair(options.get(part))}
    return table(whole, **{**_as_text(options), **held, "label": label})


def _as_text(options: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a DataFrame may be numbers; those of an Arrow table have names."""
    return {name: str(value) if name == "label" else value for name, value in options.items()}


def _dataset(given: Any, options: dict[str, Any]) -> Data:
    from flatout.data.sources.datasets.dataset import dataset, is_iterable

    asked = dict(options)
    if isinstance(given, DataLoader):
        if given.collate_fn is not default_collate:
            asked.setdefault("collate", given.collate_fn)
        if isinstance(given.sampler, WeightedRandomSampler) and not is_iterable(given.dataset):
            asked.setdefault("draw", given.sampler.weights)
        given = _samples_of(given)
    if isinstance(asked.get("validation"), DataLoader):
        asked["validation"] = _samples_of(asked["validation"])
    label = asked.pop("label", None)
    if _is_from_datasets(given):
        given, asked = _from_datasets(given, label, asked)
    return _counted(dataset(given, **asked))


def _samples_of(loader: DataLoader[Any]) -> Any:
    """The samples that a DataLoader would give in an epoch; their order does not matter, since flatout shuffles."""
    from flatout.data.sources.datasets.dataset import is_iterable

    samples, sampler = loader.dataset, loader.sampler
    if loader.batch_size is None and type(loader.batch_sampler) is not BatchSampler:
        what = "batch_size=None" if loader.batch_sampler is None else f"a {type(loader.batch_sampler).__name__}"
        raise UsageError(f"the DataLoader has {what}, so it says nothing about single samples: give its Dataset, and batch=64")
    if is_iterable(samples):
        return samples
    if loader.batch_size is None:  # a batch_sampler has the sampler
        sampler = loader.batch_sampler.sampler  # type: ignore[union-attr]
    if isinstance(sampler, SubsetRandomSampler):
        return Subset(samples, [int(number) for number in sampler.indices])
    if not isinstance(sampler, SequentialSampler | RandomSampler | WeightedRandomSampler | DistributedSampler):
        raise UsageError(
            f"the DataLoader draws samples with a {type(sampler).__name__}, which flatout can't repeat: give the Dataset, or a "
            "Subset of it, and for uneven chances draw= with a weight for each sample"
        )
    return samples


def _counted(data: Data) -> Data:
    """With the number of classes, if y is a label and all labels can be read soon enough."""
    y = data.train.schema.get("y")
    if data.classes is not None or data.train.stream is not None or y is None or y.shape != () or y.dtype.is_floating_point:
        return data
    parts = [_labels(source) for source in (data.train, data.validation) if source is not None]
    if any(part is None for part in parts):
        return data
    train, held = {"y": parts[0]}, None if len(parts) == 1 else {"y": parts[1]}
    return replace(data, classes=check_labels(train, held, None, ()))  # type: ignore[arg-type]


def _labels(source: Source) -> Tensor | None:
    """None if reading all samples takes too long: then `classes` has to be given."""
    if source.in_memory:
        return source.column("y")
    pieces, began_s = [], time.monotonic()
    for start in range(0, len(source), _ROWS_AT_ONCE):
        if time.monotonic() - began_s > _MOST_S:
            return None
        pieces.append(source.read(torch.arange(start, min(start + _ROWS_AT_ONCE, len(source))))["y"].clone())
    return torch.cat(pieces)


def split_parts(given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The part to train on, and the others as options. Without a validation part, a Dataset is evaluated on its test part."""
    held = {name: part for name, part in given.items() if name != _TRAIN}
    test = held.pop("test", None)
    options = {"validation": next(iter(held.values()))} if held else {}
    if test is not None and kind_of(given) == "table":
        options["test"] = test
    elif test is not None and not options:
        options["validation"] = test
    return given[_TRAIN], options


# ---- objects of other libraries ----


def _is_from_datasets(given: Any) -> bool:
    """A Dataset or IterableDataset of Hugging Face's `datasets`."""
    return type(given).__module__.partition(".")[0] == "datasets" and hasattr(given, "features")


def _from_datasets(given: Any, label: str | None, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The names of its classes are in its features; its cells become tensors."""
    asked, features = dict(options), given.features or {}
    asked_for = label is not None
    label = label if asked_for else next((name for name in _LABELS if name in features), None)
    inputs = [name for name in features if name != label]
    if "columns" not in asked and (asked_for or len(inputs) == 1):
        if len(inputs) != 1:
            raise UsageError(
                f"it has the columns {', '.join(features)}: say which one the model gets, as columns={{'x': ..., "
                f"'y': {label!r}}}; "
                "for a table of plain values give dataset.to_pandas()"
            )
        asked["columns"] = {"x": inputs[0], **({} if label is None else {"y": label})}
    names = getattr(features.get(label), "names", None)
    if names and "classes" not in asked:
        asked["classes"] = len(names)
    if isinstance(asked.get("validation"), type(given)):
        asked["validation"] = asked["validation"].with_format("torch")
    return given.with_format("torch"), asked


def _is_array(given: Any) -> bool:
    return isinstance(given, list) or hasattr(given, "shape") or hasattr(given, "__arrow_c_stream__")


def _is_column(given: Any) -> bool:
    return hasattr(given, "to_frame") or (hasattr(given, "__arrow_c_stream__") and not is_table(given))


def _words(given: Any) -> str:
    kind = type(given).__name__
    if _is_column(given):
        return f"a {kind}, which is one column: give the whole DataFrame and label=, or (x, y)"
    if isinstance(given, type):
        return f"the class {given.__name__}: give an object of it, {given.__name__}(...)"
    if is_lazy(given):
        return f"a {kind}: call its collect() first"
    rows = isinstance(given, list) and given and isinstance(given[0], Mapping)
    if rows or getattr(getattr(given, "dtype", None), "names", None):
        return f"this is a {kind} of rows: make it a table, as pd.DataFrame(rows)"
    return f"a {kind} has none: its label is y, as in (x, y); leave out label" if kind_of(given) else kind
