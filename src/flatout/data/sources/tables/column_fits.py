"""Fits columns of numbers and of categories while training rows stream by once, in blocks.

Blocks have a fixed number of rows, so the result does not depend on how files are cut. The order of rows changes only the last
bits of means and deviations, which are sums of floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.data.fitted.codings import Category, Coding, Label, Number, bucket_of
from flatout.data.fitted.table_features import CategoryFeatures, NumberFeatures
from flatout.data.fitted.values import Values
from flatout.data.sources.tables.quantiles import HashSample
from flatout.data.sources.tables.scan import listed
from flatout.data.sources.tables.steps import ColumnPlan
from flatout.data.sources.tables.targets import target_coding, target_matrix, target_suffixes

Array = np.ndarray[Any, Any]

MOST_CATEGORIES = 100_000
"""A column with more distinct values is hashed into buckets: this bounds the memory of a fit."""

HASH_BUCKETS = 1 << 15
_COARSE = 2.0**-12  # of a deviation: the most that float32 may round a number by, before it is shifted


@dataclass(frozen=True)
class Context:
    """What the fit of a column needs from the table. `label` is set only for target encoding."""

    label: Label | None
    hash_buckets: int | None


@dataclass(frozen=True)
class FittedColumn:
    """A fitted column. `others` are the means for target-encoded training rows, [ids, folds, outputs]."""

    coding: Coding
    numbers: tuple[NumberFeatures, ...] = ()
    categories: tuple[CategoryFeatures, ...] = ()
    others: Array | None = None


class Moments:
    """Count, mean, deviation and range of numbers; NaN is missing. Merges batches in float64 without loss of precision."""

    def __init__(self) -> None:
        self.count, self.missing = 0, 0
        self.mean, self._squares = 0.0, 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, values: Array, weights: Array | None = None) -> None:
        """`weights`: how often each value occurs."""
        present = ~np.isnan(values)
        if not present.all():
            self.missing += int(len(values) - present.sum())
            values, weights = values[present], None if weights is None else weights[present]
        count = len(values) if weights is None else int(weights.sum())
        if not count:
            return
        times = np.float64(1.0) if weights is None else weights
        mean = float((values * times).sum() / count) if weights is not None else float(values.sum() / count)
        squares = float((np.square(values - mean) * times).sum())
        step, total = mean - self.mean, self.count + count
        self._squares += squares + step * step * self.count * count / total
        self.mean += step * count / total
        self.count = total
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    @property
    def std(self) -> float:
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    @property
    def varies(self) -> bool:
        return self.high > self.low


class NumberFit:
    def __init__(self, column: ColumnPlan, context: Context) -> None:
        self.name, self.steps = column.name, column.steps.number
        self._raw = Moments()
        self._low, self._high = (None, None) if self.steps.clip_quantiles else self.steps.clip
        shaped = self.steps.log or self._low is not None or self._high is not None
        self._shaped = Moments() if shaped else self._raw

    @property
    def needs_quantiles(self) -> bool:
        return self.steps.fill == "median" or self.steps.clip_quantiles or self.steps.buckets is not None

    def add(self, values: Values, folds: Mapping[str, Array], y: Array | None) -> None:
        numbers = values.numbers(self.name)
        self._raw.add(numbers)
        if self._shaped is not self._raw:
            self._shaped.add(self._shape(numbers, self._low, self._high))

    def done(self, sample: HashSample | None, notes: Dropped) -> FittedColumn | None:
        raw = self._raw
        if not raw.count:
            notes.empty.append(self.name)
            return None
        if not raw.varies and not raw.missing:
            notes.constant.append(self.name)
            return None
        low, high, shaped = self._low, self._high, self._shaped
        if self.steps.clip_quantiles:
            assert sample is not None
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

    def _fill(self, raw: Moments, sample: HashSample | None) -> float:
        if self.steps.fill == "mean":
            return raw.mean
        if self.steps.fill == "median":
            assert sample is not None
            return sample.quantiles(self.name, [0.5])[0]
        return 0.0 if self.steps.fill == "zero" else float(self.steps.fill)

    def _edges(self, sample: HashSample | None, shift: float) -> tuple[float, ...]:
        """The edges between buckets, without duplicates."""
        if self.steps.buckets is None or not self._raw.varies:
            return ()
        assert sample is not None
        shares = [place / self.steps.buckets for place in range(1, self.steps.buckets)]
        edges = np.unique(np.float32(np.array(sample.quantiles(self.name, shares)) - shift))
        smallest = np.float32(self._raw.low - shift)
        return tuple(edge for edge in edges.tolist() if edge > smallest) or (float(np.float32(self._raw.high - shift)),)

    def _shift(self, raw: Moments) -> float:
        """A constant to subtract from numbers that are too large for their spread for float32, such as seconds since 1970."""
        largest = max(abs(raw.low), abs(raw.high))
        movable = not self.steps.log and (self.steps.standardise or self.steps.buckets is not None)
        if not movable or not raw.varies or largest * 2.0**-24 <= _COARSE * raw.std:
            return 0.0
        return float(np.round(raw.mean)) if abs(raw.mean) < 2.0**53 else raw.mean


class CategoryFit:
    def __init__(self, column: ColumnPlan, context: Context) -> None:
        self.name, self._steps = column.name, column.steps.category
        target = self._steps.target
        self._label = label = context.label
        outputs = 0 if target is None or label is None else target_matrix(np.zeros(0), label.class_count).shape[1]
        most = MOST_CATEGORIES if context.hash_buckets is None else min(MOST_CATEGORIES, context.hash_buckets)
        fallback = context.hash_buckets or HASH_BUCKETS
        self._counts = CategoryCounts(self._steps.hash, fallback, most, 1 if target is None else target.folds, outputs)

    def add(self, values: Values, folds: Mapping[str, Array], y: Array | None) -> None:
        codes, texts = values.texts(self.name)
        if self._steps.target is None:
            self._counts.add(codes, texts)
        else:
            self._counts.add(codes, texts, folds[self.name], y)

    def done(self, sample: HashSample | None, notes: Dropped) -> FittedColumn | None:
        counts, target = self._counts, self._steps.target
        if counts.distinct <= 1:
            (notes.empty if counts.only_missing else notes.constant).append(self.name)
            return None
        category, rows, sums, rare = counts.coding(self.name, self._steps.min_count)
        if counts.overflowed:
            notes.said.append(f"{self.name!r} has too many distinct values: hashed into {category.buckets} buckets")
        if target is not None:
            assert self._label is not None
            suffixes = target_suffixes(self._label)
            coding, others = target_coding(category, rows, sums, target.smoothing, suffixes)
            means = []
            for output, name in enumerate(coding.outputs):
                moments = Moments()
                moments.add(others[:, :, output].ravel(), rows.ravel())
                std = moments.std if moments.varies else 1.0
                means.append(NumberFeatures(name, fill=moments.mean, mean=moments.mean, std=std))
            return FittedColumn(coding, tuple(means), others=others)
        if category.cardinality == 1:
            notes.said.append(
                f"{self.name!r} left out: none of its {counts.distinct} values occurs {self._steps.min_count} times"
            )
            return None
        if rare:
            notes.said.append(
                f"{self.name!r}: values that occur fewer than {self._steps.min_count} times ({rare}) count as unknown"
            )
        small = category.buckets is None and len(category.categories) <= self._steps.onehot
        names = tuple("(missing)" if text is None else text for text in category.categories) if small else ()
        return FittedColumn(category, categories=(CategoryFeatures(self.name, category.cardinality, names),))


class CategoryCounts:
    """How often each category occurs; for target encoding also the sum of targets, by fold.

    Above `limit` distinct categories, all of them are counted by hash bucket.
    """

    def __init__(self, asked: int | None, fallback: int, limit: int, folds: int = 1, outputs: int = 0) -> None:
        self.buckets = asked
        self._fallback, self._limit = fallback, limit
        self._places: dict[str | None, int] = {}
        size = 0 if asked is None else asked + 1
        self.rows = np.zeros((size, folds), dtype=np.int64)
        self.sums = np.zeros((size, folds, outputs))
        self.overflowed = False

    def add(self, codes: Array, texts: list[str | None], fold: Array | None = None, targets: Array | None = None) -> None:
        """`targets` is float64 [rows, outputs]."""
        places = self._place(texts)[codes]
        folds = self.rows.shape[1]
        cells = places if fold is None else places * folds + fold
        self.rows += np.bincount(cells, minlength=self.rows.size).reshape(self.rows.shape)
        if targets is not None:
            for output in range(self.sums.shape[2]):
                added = np.bincount(cells, weights=targets[:, output], minlength=self.rows.size)
                self.sums[:, :, output] += added.reshape(self.rows.shape)

    @property
    def distinct(self) -> int:
        return int((self.rows.sum(1) > 0).sum())

    @property
    def only_missing(self) -> bool:
        present = [text for text, place in self._places.items() if text is not None and self.rows[place].any()]
        return not present if self.buckets is None else not self.rows[1:].any()

    def coding(self, name: str, min_count: int) -> tuple[Category, Array, Array, int]:
        """The coding of a column (categories sorted by name), rows and sums by id, and the number of too rare values."""
        if self.buckets is not None:
            return Category(name, (), self.buckets), self.rows, self.sums, 0
        totals = self.rows.sum(1)
        kept = [text for text, place in self._places.items() if totals[place] >= min_count]
        kept.sort(key=lambda text: (text is None, text or ""))
        category = Category(name, tuple(kept))
        ids = category.ids_of(list(self._places))
        rows = np.zeros((category.cardinality, *self.rows.shape[1:]), dtype=np.int64)
        sums = np.zeros((category.cardinality, *self.sums.shape[1:]))
        # sorted, so that the order of rows does not change the sums
        by_name = sorted(self._places.items(), key=lambda item: (item[0] is None, item[0] or ""))
        places = np.array([place for _, place in by_name], dtype=np.int64)
        np.add.at(rows, ids[places], self.rows[places])
        np.add.at(sums, ids[places], self.sums[places])
        return category, rows, sums, self.distinct - len(kept)

    def _place(self, texts: list[str | None]) -> Array:
        if self.buckets is None:
            places = np.array([self._places.setdefault(text, len(self._places)) for text in texts], dtype=np.int64)
            if len(self._places) <= self._limit:
                self._grow(len(self._places))
                return places
            self._overflow()
        assert self.buckets is not None
        return bucket_of(texts, self.buckets).astype(np.int64)

    def _grow(self, size: int) -> None:
        if size > len(self.rows):
            room = max(size, 2 * len(self.rows)) - len(self.rows)
            self.rows = np.concatenate([self.rows, np.zeros((room, *self.rows.shape[1:]), dtype=np.int64)])
            self.sums = np.concatenate([self.sums, np.zeros((room, *self.sums.shape[1:]))])

    def _overflow(self) -> None:
        self.buckets, self.overflowed = self._fallback, True
        known = [text for text, place in self._places.items() if place < len(self.rows)]
        rows, sums = self.rows[: len(known)], self.sums[: len(known)]
        self.rows = np.zeros((self.buckets + 1, *rows.shape[1:]), dtype=np.int64)
        self.sums = np.zeros((self.buckets + 1, *sums.shape[1:]))
        if known:
            places = bucket_of(known, self.buckets)
            np.add.at(self.rows, places, rows)
            np.add.at(self.sums, places, sums)
        self._places = {}


class Dropped:
    """Columns that were left out, and other notes about the fit."""

    def __init__(self) -> None:
        self.constant: list[str] = []
        self.empty: list[str] = []
        self.said: list[str] = []

    def notes(self) -> Iterator[str]:
        if self.constant:
            yield f"left out: the same value in every training row: {listed(self.constant)}"
        if self.empty:
            yield f"left out: no value in any training row: {listed(self.empty)}"
        yield from self.said
