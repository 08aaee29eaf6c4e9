"""What is fitted of one column, by its kind, and what it becomes: its coding on the host and its features on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.data.fitted.codings import Coding, Date, Number
from flatout.data.fitted.dates import PERIODS, date_part
from flatout.data.fitted.label import Label
from flatout.data.fitted.table_features import CategoryFeatures, NumberFeatures
from flatout.data.sources.tables.arrow import ArrowValues
from flatout.data.sources.tables.kinds import ColumnPlan, listed
from flatout.data.sources.tables.statistics import HASH_BUCKETS, MOST_CATEGORIES, CategoryCounts, HashSample, Moments
from flatout.data.sources.tables.targets import target_coding, target_matrix

Array = np.ndarray[Any, Any]

_COARSE = 2.0**-12  # of a deviation: what float32 may round off a number before it is shifted


@dataclass(frozen=True)
class Context:
    """What a column's fit has to know of the rest; `label` only where a column is encoded by it."""

    label: Label | None
    hash_buckets: int | None


@dataclass(frozen=True)
class FittedColumn:
    """A fitted column. `others` is what target-encoded training rows get, [ids, folds, outputs]."""

    coding: Coding
    numbers: tuple[NumberFeatures, ...] = ()
    categories: tuple[CategoryFeatures, ...] = ()
    others: Array | None = None


class NumberFit:
    def __init__(self, column: ColumnPlan, context: Context) -> None:
        self.name, self.steps = column.name, column.steps.number
        self._raw = Moments()
        self._low, self._high = (None, None) if self.steps.clip_quantiles else self.steps.clip
        shaped = self.steps.log or self._low is not None or self._high is not None
        self._shaped = Moments() if shaped else self._raw

    def add(self, values: ArrowValues, folds: Mapping[str, Array], y: Array | None) -> None:
        numbers = values.numbers(self.name)
        self._raw.add(numbers)
        if self._shaped is not self._raw:
            self._shaped.add(self._shape(numbers, self._low, self._high))

    def done(self, sample: HashSample, notes: Dropped) -> FittedColumn | None:
        raw = self._raw
        if not raw.count:
            notes.empty.append(self.name)
            return None
        if not raw.varies and not raw.missing:
            notes.constant.append(self.name)
            return None
        low, high, shaped = self._low, self._high, self._shaped
        if self.steps.clip_quantiles:
            shares = [share for share in self.steps.clip if share is not None]
            limits = dict(zip(shares, sample.quantiles(self.name, shares), strict=True))
            low, high = (None if share is None else limits[share] for share in self.steps.clip)
            shaped = Moments()
            shaped.add(self._shape(sample.values(self.name), low, high))
        shift = self._shift(raw)
        fill = self._fill(raw, sample)
        std = shaped.std if shaped.varies else 1.0
        features = NumberFeatures(
            self.name,
            fill=fill - shift,
            flag=f"{self.name}=missing" if raw.missing else None,
            low=None if low is None else low - shift,
            high=None if high is None else high - shift,
            log=self.steps.log,
            mean=shaped.mean - shift if self.steps.standardise else 0.0,
            std=std if self.steps.standardise else 1.0,
            value=shaped.varies and self.steps.buckets is None,
            edges=self._edges(sample, shift),
            rank=self.steps.bucket_ranks,
        )
        return FittedColumn(Number(self.name, shift), (features,))

    def _shape(self, numbers: Array, low: float | None, high: float | None) -> Array:
        if low is not None or high is not None:
            numbers = np.clip(numbers, low, high)
        return np.sign(numbers) * np.log1p(np.abs(numbers)) if self.steps.log else numbers

    def _fill(self, raw: Moments, sample: HashSample) -> float:
        if self.steps.fill == "mean":
            return raw.mean
        if self.steps.fill == "median":
            return sample.quantiles(self.name, [0.5])[0]
        return 0.0 if self.steps.fill == "zero" else float(self.steps.fill)

    def _edges(self, sample: HashSample, shift: float) -> tuple[float, ...]:
        """Between the buckets: equal ones, where many rows have one value, are one."""
        if self.steps.buckets is None or not self._raw.varies:
            return ()
        shares = [place / self.steps.buckets for place in range(1, self.steps.buckets)]
        edges = np.unique(np.float32(np.array(sample.quantiles(self.name, shares)) - shift))
        smallest = np.float32(self._raw.low - shift)
        return tuple(edge for edge in edges.tolist() if edge > smallest) or (float(np.float32(self._raw.high - shift)),)

    def _shift(self, raw: Moments) -> float:
        """Numbers far from 0 for their spread (seconds since 1970, large ids) differ too little for float32, unless moved."""
        largest = max(abs(raw.low), abs(raw.high))
        movable = not self.steps.log and (self.steps.standardise or self.steps.buckets is not None)
        if not movable or not raw.varies or largest * 2.0**-24 <= _COARSE * raw.std:
            return 0.0
        return float(np.round(raw.mean)) if abs(raw.mean) < 2.0**53 else raw.mean


class DateFit:
    def __init__(self, column: ColumnPlan, context: Context) -> None:
        import pyarrow as pa

        self.name, self._steps = column.name, column.steps.date
        of_day = ("hour",) if pa.types.is_time(column.type) else self._steps.parts
        self._parts = {part: Moments() for part in of_day if part != "hour" or not pa.types.is_date(column.type)}

    def add(self, values: ArrowValues, folds: Mapping[str, Array], y: Array | None) -> None:
        instants, missing = values.instants(self.name, self._steps.format)
        for part, moments in self._parts.items():
            moments.add(np.where(missing, np.nan, date_part(part, instants)))

    def done(self, sample: HashSample, notes: Dropped) -> FittedColumn | None:
        varying = {part: moments for part, moments in self._parts.items() if moments.varies}
        if not varying:
            empty = all(not moments.count for moments in self._parts.values())
            (notes.empty if empty else notes.constant).append(self.name)
            return None
        notes.constant += [f"{self.name}.{part}" for part in self._parts if part not in varying]
        features = []
        for place, (part, moments) in enumerate(varying.items()):
            flag = (
                f"{self.name}=missing" if moments.missing and not place else None
            )  # one is enough: parts are missing together
            period = PERIODS.get(part) if self._steps.cycles else None
            features.append(
                NumberFeatures(
                    f"{self.name}.{part}", fill=moments.mean, flag=flag, mean=moments.mean, std=moments.std, period=period
                )
            )
        return FittedColumn(Date(self.name, tuple(varying), self._steps.format), tuple(features))


class CategoryFit:
    def __init__(self, column: ColumnPlan, context: Context) -> None:
        self.name, self._steps = column.name, column.steps.category
        target = self._steps.target
        self._label = label = context.label
        outputs = 0 if target is None or label is None else target_matrix(np.zeros(0), label.class_count).shape[1]
        most = MOST_CATEGORIES if context.hash_buckets is None else min(MOST_CATEGORIES, context.hash_buckets)
        fallback = context.hash_buckets or HASH_BUCKETS
        self._counts = CategoryCounts(self._steps.hash, fallback, most, 1 if target is None else target.folds, outputs)

    def add(self, values: ArrowValues, folds: Mapping[str, Array], y: Array | None) -> None:
        codes, texts = values.texts(self.name)
        if self._steps.target is None:
            self._counts.add(codes, texts)
        else:
            self._counts.add(codes, texts, folds[self.name], y)

    def done(self, sample: HashSample, notes: Dropped) -> FittedColumn | None:
        counts, target = self._counts, self._steps.target
        if counts.distinct <= 1:
            (notes.empty if counts.only_missing else notes.constant).append(self.name)
            return None
        category, rows, sums, rare = counts.coding(self.name, self._steps.min_count)
        if counts.overflowed:
            notes.said.append(f"{self.name!r} has too many distinct values to list: hashed into {category.buckets} buckets")
        if target is not None:
            assert self._label is not None
            suffixes = _suffixes(self._label)
            coding, others, moments = target_coding(category, rows, sums, target.smoothing, suffixes)
            means = [
                NumberFeatures(name, fill=m.mean, mean=m.mean, std=m.std if m.varies else 1.0)
                for name, m in zip(coding.outputs, moments, strict=True)
            ]
            return FittedColumn(coding, tuple(means), others=others)
        if category.cardinality == 1:
            notes.said.append(
                f"{self.name!r} left out: none of its {counts.distinct} values comes {self._steps.min_count} times"
            )
            return None
        if rare:
            notes.said.append(
                f"{self.name!r}: values that come fewer than {self._steps.min_count} times ({rare}) are one unknown"
            )
        small = category.buckets is None and len(category.categories) <= self._steps.onehot
        names = tuple("(missing)" if text is None else text for text in category.categories) if small else ()
        return FittedColumn(category, categories=(CategoryFeatures(self.name, category.cardinality, names),))


class Dropped:
    """What is to be said about columns when all are fitted."""

    def __init__(self) -> None:
        self.constant: list[str] = []
        self.empty: list[str] = []
        self.said: list[str] = []

    def notes(self) -> Iterator[str]:
        if self.constant:
            yield f"left out, since every training row has the same: {listed(self.constant)}"
        if self.empty:
            yield f"left out, since no training row has a value: {listed(self.empty)}"
        yield from self.said


FITS: dict[str, type[NumberFit] | type[DateFit] | type[CategoryFit]] = {
    "number": NumberFit,
    "date": DateFit,
    "category": CategoryFit,
}


def _suffixes(label: Label) -> tuple[str, ...]:
    """Of the columns that a category becomes: one, or one for each class where there are more than two."""
    return ("",) if label.classes is None or len(label.classes) == 2 else tuple(f"={name}" for name in label.classes)
