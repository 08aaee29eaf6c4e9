"""Descriptions of the columns of data and of what was fitted on them, from a sample of the training rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.base.units import show_bytes, show_count
from flatout.data.data import Data
from flatout.data.fitted.codings import Category, Date, TargetEncoding
from flatout.data.fitted.table_features import CategoryFeatures, NumberFeatures, TableFeatures
from flatout.data.fitted.table_rows import TableHost
from flatout.data.source import Source

_SAMPLE_ROWS = 200_000
_PLACES = ("start", "height", "width")  # the places of photos among the pixels


@dataclass(frozen=True)
class ColumnWords:
    """`missing` is a share of the rows; None if nothing can be missing."""

    name: str
    kind: str
    missing: float | None
    what: str


@dataclass(frozen=True)
class LabelWords:
    """`classes` has the share of each class in the training rows, by name; numbers have `low` and `high`."""

    name: str
    classes: tuple[tuple[str, float], ...] = ()
    low: float | None = None
    high: float | None = None


def columns_of(data: Data) -> tuple[ColumnWords, ...]:
    if isinstance(data.host, TableHost):
        (features,) = data.prepare
        assert isinstance(features, TableFeatures)
        return tuple(_fitted(data.host, features, _sample(data.train)))
    return tuple(
        ColumnWords(name, _stored(column), None, _as_given(name, data))
        for name, column in data.train.schema.items()
        if name not in _PLACES
    )


def label_of(data: Data) -> LabelWords | None:
    y = _targets(data.train)
    if y is None or y.dim() != 1 or not len(y):
        return None
    name = data.host.label.name if isinstance(data.host, TableHost) else "y"
    if data.classes is None or y.is_floating_point():
        return LabelWords(name, low=float(y.min()), high=float(y.max()))
    counts = torch.bincount(y.long(), minlength=data.classes).tolist()
    names = data.labels or [str(place) for place in range(data.classes)]
    return LabelWords(name, tuple((str(n), count / len(y)) for n, count in zip(names, counts, strict=False)))


def _targets(source: Source) -> Tensor | None:
    """The targets of all rows; None if there is not one number a row."""
    if source.stream is not None or "y" not in source.schema or source.schema["y"].shape:
        return None
    return source.column("y")


def _sample(source: Source) -> Mapping[str, Tensor]:
    """Rows spread evenly over all."""
    count = min(len(source), _SAMPLE_ROWS)
    if source.in_memory and count == len(source):
        return source.stored()
    return source.read(torch.arange(count) * len(source) // count)


def _fitted(host: TableHost, features: TableFeatures, sample: Mapping[str, Tensor]) -> Iterator[ColumnWords]:
    codings = host.codings
    numbers = {column.name: column for column in features.numbers}
    categories = {column.name: column for column in features.categories}
    absent = _absent(sample.get("numeric"))
    for coding in codings.columns:
        if isinstance(coding, Category):
            gone = None
            if None in coding.categories:
                ids = sample["ids"][:, codings.ids.index(coding.name)]
                gone = float((ids == 1 + coding.categories.index(None)).double().mean())
            yield ColumnWords(coding.name, "category", gone, _category_words(coding, categories[coding.name]))
            continue
        parts = [numbers[name] for name in coding.outputs]
        gone = absent[codings.numeric.index(coding.outputs[0])]
        if isinstance(coding, Date):
            yield ColumnWords(coding.name, "date", gone, ", ".join(_part_words(part, coding.name) for part in parts))
        elif isinstance(coding, TargetEncoding):
            yield ColumnWords(coding.name, "category", None, "the mean of the label over other rows with its value")
        else:
            yield ColumnWords(coding.name, "number", gone, _number_words(parts[0], coding.shift))


def _absent(numeric: Tensor | None) -> list[float]:
    return [] if numeric is None else torch.isnan(numeric).double().mean(0).tolist()


def _number_words(column: NumberFeatures, shift: float) -> str:
    words = []
    if column.low is not None or column.high is not None:
        low, high = (math.inf if bound is None else bound + shift for bound in (column.low, column.high))
        words.append(f"clipped to {'' if math.isinf(low) else f'{low:.4g}'} .. {'' if math.isinf(high) else f'{high:.4g}'}")
    if column.log:
        words.append("logarithm")
    if column.value and (column.mean or column.std != 1):
        words.append(f"standardised: mean {_short(column.mean + shift)}, deviation {_short(column.std)}")
    if column.edges:
        words.append(f"{len(column.edges) + 1} buckets{' as ranks' if column.rank else ''}")
    if column.flag is not None:
        words.append(f"missing: {_short(column.fill + shift)} and a flag")
    return "; ".join(words) or "as it is"


def _short(value: float) -> str:
    return show_count(value) if abs(value) >= 10_000 else f"{value:.3g}"


def _part_words(part: NumberFeatures, date: str) -> str:
    name = part.name.removeprefix(f"{date}.")
    return f"{name} (as a circle)" if part.period is not None else name


def _category_words(coding: Category, column: CategoryFeatures) -> str:
    if coding.buckets is not None:
        return f"hashed into {coding.buckets:,} buckets, an embedding"
    known = sum(text is not None for text in coding.categories)
    few = ", ".join(text for text in coding.categories[:3] if text is not None)
    more = ", ..." if known > 3 else ""
    how = "as 0 and 1" if column.onehot else "embedded"
    return f"{known:,} values {how}: {few}{more}"


def _stored(column: Any) -> str:
    dtype = str(column.dtype).removeprefix("torch.")
    if column.ragged is not None:
        return f"{dtype}, about {show_bytes(column.row_bytes)} a row"
    return f"{dtype} {' x '.join(map(str, column.shape))}".rstrip()


def _as_given(name: str, data: Data) -> str:
    """What the model gets from it."""
    if name not in ("x", "pixels"):
        return ""
    words = [f"to the model: {_stored(data.schema()['x'])}"]
    if data.vocabulary is not None:
        words.append(f"{data.vocabulary:,} different tokens")
    return "; ".join(words)
