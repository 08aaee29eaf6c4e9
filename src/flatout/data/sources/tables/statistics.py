"""What is learned of columns while rows stream by once: moments, a sample for quantiles, counts of categories.

All of it is fed blocks of a fixed number of rows, so that how files are cut changes no bit of the result. Nor does the order of
rows, except for the last bits of means and deviations, which are sums of floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flatout.data.fitted.codings import Category, bucket_of

Array = np.ndarray[Any, Any]

EXACT_QUANTILES = 1 << 20
"""Quantiles of up to this many rows are exact. Of more, they are those of the rows with the smallest content hashes, as many as
this: a sample that neither order nor cut changes, whose ranks are off by about 0.05% of the rows (one standard error)."""

MOST_CATEGORIES = 100_000
"""A column with more distinct values than this is hashed into buckets: the memory of a fit is bounded."""

HASH_BUCKETS = 1 << 15


class Moments:
    """Count, mean, deviation and range of numbers; NaN is missing. float64, without the loss that sums of squares have."""

    def __init__(self) -> None:
        self.count, self.missing = 0, 0
        self.mean, self._squares = 0.0, 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, values: Array, weights: Array | None = None) -> None:
        """`weights`: how often each value stands there."""
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


class HashSample:
    """Columns of the rows with the smallest hashes, `EXACT_QUANTILES` of them."""

    def __init__(self, columns: Sequence[str], size: int = EXACT_QUANTILES) -> None:
        self._size = size
        self._columns = list(columns)
        self._pieces: list[tuple[Array, Array]] = []
        self._held, self.rows = 0, 0

    def add(self, hashes: Array, columns: Sequence[Array]) -> None:
        self._pieces.append((hashes, np.stack(columns)))
        self._held += len(hashes)
        self.rows += len(hashes)
        if self._held > 2 * self._size:
            self._cut()

    def quantiles(self, column: str, shares: Sequence[float]) -> list[float]:
        values = self.values(column)
        return [float(value) for value in np.quantile(values, shares)]

    def values(self, column: str) -> Array:
        self._cut()
        values = self._pieces[0][1][self._columns.index(column)]
        return np.asarray(values[~np.isnan(values)])

    def _cut(self) -> None:
        hashes = np.concatenate([piece[0] for piece in self._pieces])
        values = np.concatenate([piece[1] for piece in self._pieces], axis=1)
        if len(hashes) > self._size:
            kept = np.argpartition(hashes, self._size - 1)[: self._size]  # rows of equal hash are equal: any of them will do
            hashes, values = hashes[kept], values[:, kept]
        self._pieces, self._held = [(hashes, values)], len(hashes)


class CategoryCounts:
    """How often each category stands there, and in target encoding also the sum of targets, by fold.

    More than `limit` distinct ones are counted by hash bucket from there on, those seen before among them.
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
        """The coding of a column (categories by name), rows and sums by id, and how many distinct values were too rare."""
        if self.buckets is not None:
            return Category(name, (), self.buckets), self.rows, self.sums, 0
        totals = self.rows.sum(1)
        kept = [text for text, place in self._places.items() if totals[place] >= min_count]
        kept.sort(key=lambda text: (text is None, text or ""))
        category = Category(name, tuple(kept))
        ids = category.ids_of(list(self._places))
        rows = np.zeros((category.cardinality, *self.rows.shape[1:]), dtype=np.int64)
        sums = np.zeros((category.cardinality, *self.sums.shape[1:]))
        by_name = sorted(
            self._places.items(), key=lambda item: (item[0] is None, item[0] or "")
        )  # sums in an order of their own
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
