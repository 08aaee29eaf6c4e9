"""Fits the expressions that look at several rows: groups and bins on training rows, lags on the rows of the table in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from flatout.base.errors import DataError
from flatout.data.fitted.derived.derivation import Derivation, DerivedValues
from flatout.data.fitted.derived.derived_values import Array, DerivedNumbers
from flatout.data.fitted.derived.expressions import Expression, FunctionCall, LiteralValue, NamedColumn
from flatout.data.fitted.derived.fitted_tables import BinEdges, EarlierValues, FittedTable, GroupKey, GroupValues, group_keys
from flatout.data.fitted.derived.functions import BINNED, FUNCTIONS, LAGGED
from flatout.data.order.keyed import keyed
from flatout.data.order.split import hash_batch
from flatout.data.sources.tables.arrow import ArrowValues
from flatout.data.sources.tables.encoding import UsableRows
from flatout.data.sources.tables.parts import PartOf
from flatout.data.sources.tables.quantiles import HashSample

MOST_GROUPS = 1_000_000
MOST_EARLIER = 10_000_000
_WINDOW_VALUES = 1 << 22


class DerivedFit(Protocol):
    """One call that is fitted. `add` gets every row once; `held` masks those that are not for training."""

    def add(self, values: DerivedValues, held: Array, hashes: Array) -> None: ...

    def done(self) -> FittedTable: ...


def fit_derivation(derivation: Derivation, rows: UsableRows, part_of: PartOf, seed: int) -> Derivation:
    """A pass over the rows for each level of calls within calls."""
    for level in _levels(derivation):
        fits = {key: _fit_of(derivation, call) for key, call in level.items()}
        start = 0
        for batch, where in rows.batches():
            held = part_of(batch, start) != 0
            start += batch.num_rows
            hashes = hash_batch(batch, keyed(seed, "sample")) if any(isinstance(one, BinFit) for one in fits.values()) else held
            values = derivation.values(ArrowValues(batch))
            for key, one in fits.items():
                try:
                    one.add(values, held, hashes)
                except DataError as error:
                    raise DataError(f"derive: `{key}`: {error} ({where.file})") from error
        try:
            derivation = derivation.with_tables({key: one.done() for key, one in fits.items()})
        except DataError as error:
            raise DataError(f"derive: {error}") from error
    return derivation


def _levels(derivation: Derivation) -> Iterator[dict[str, FunctionCall]]:
    """The fitted calls, those first that need no other."""
    calls = derivation.fitted_calls()
    below = {key: _calls_below(call, derivation) - {key} for key, call in calls.items()}
    done: set[str] = set()
    while len(done) < len(calls):
        level = {key: call for key, call in calls.items() if key not in done and below[key] <= done}
        yield level
        done |= level.keys()


def _calls_below(call: FunctionCall, derivation: Derivation) -> set[str]:
    found: set[str] = set()
    waiting: list[Expression] = [*call.parts]
    if FUNCTIONS[call.name].fitted == LAGGED and derivation.time in derivation.trees:
        waiting.append(derivation.trees[derivation.time])
    seen: set[str] = set()
    while waiting:
        for node in waiting.pop().walk():
            if isinstance(node, FunctionCall):
                found |= {node.key} if node.key else set()
            elif isinstance(node, NamedColumn) and node.name in derivation.trees and node.name not in seen:
                seen.add(node.name)
                waiting.append(derivation.trees[node.name])
    return found


def _fit_of(derivation: Derivation, call: FunctionCall) -> DerivedFit:
    kind = FUNCTIONS[call.name].fitted
    if kind == BINNED:
        return BinFit(call)
    return LagFit(call) if kind == LAGGED else GroupFit(call)


class GroupFit:
    """Count, mean, deviation and range of each group of training rows, merged batch by batch as in Chan, Golub and LeVeque."""

    def __init__(self, call: FunctionCall) -> None:
        self._call = call
        self._places: dict[GroupKey, int] = {}
        self._all = _Groups()
        self._groups = _Groups()
        self._rows = 0

    def add(self, values: DerivedValues, held: Array, hashes: Array) -> None:
        kept = ~held
        codes, keys = group_keys([values.computed(part) for part in self._call.by], values.rows)
        used = np.unique(codes[kept])
        places = np.full(len(keys), -1, dtype=np.int64)
        for code in used.tolist():
            places[code] = self._places.setdefault(keys[code], len(self._places))
        if len(self._places) > MOST_GROUPS:
            raise DataError(f"more than {MOST_GROUPS:,} groups: group by a column with fewer values")
        numbers = np.ones(values.rows)
        if self._call.arguments:
            column = values.computed(self._call.arguments[0])
            assert isinstance(column, DerivedNumbers)
            numbers = column.values
        there = kept & ~np.isnan(numbers)
        self._groups.add(places[codes][there], numbers[there], len(self._places))
        self._all.add(np.zeros(int(there.sum()), dtype=np.int64), numbers[there], 1)

    def done(self) -> GroupValues:
        name = self._call.name
        each = self._groups.of(name, len(self._places)).tolist()
        otherwise = 0.0 if name == "count" else float(self._all.of(name, 1)[0])
        return GroupValues(tuple(self._places), tuple(each), otherwise)


class _Groups:
    def __init__(self) -> None:
        self.count, self.mean, self.squares, self.low, self.high = (np.zeros(0) for _ in range(5))

    def add(self, places: Array, numbers: Array, size: int) -> None:
        self._grow(size)
        count = np.bincount(places, minlength=size).astype(np.float64)
        some = np.maximum(count, 1)
        mean = np.bincount(places, numbers, minlength=size) / some
        squares = np.bincount(places, np.square(numbers - mean[places]), minlength=size)
        total, step = self.count + count, mean - self.mean
        share = count / np.maximum(total, 1)
        self.squares += squares + np.square(step) * self.count * share
        self.mean += step * share
        self.count = total
        np.minimum.at(self.low, places, numbers)
        np.maximum.at(self.high, places, numbers)

    def of(self, name: str, size: int) -> Array:
        self._grow(size)
        none = self.count == 0
        if name == "count":
            return self.count
        if name == "std":
            return np.where(self.count < 2, np.nan, np.sqrt(self.squares / np.maximum(self.count - 1, 1)))
        found = {"mean": self.mean, "share": self.mean, "min": self.low, "max": self.high}[name]
        return np.asarray(np.where(none, np.nan, found))

    def _grow(self, size: int) -> None:
        more = size - len(self.count)
        if more > 0:
            self.count, self.mean, self.squares = (
                np.concatenate([a, np.zeros(more)]) for a in (self.count, self.mean, self.squares)
            )
            self.low = np.concatenate([self.low, np.full(more, np.inf)])
            self.high = np.concatenate([self.high, np.full(more, -np.inf)])


class BinFit:
    """Edges between bins of equally many training rows; exact up to a million of them, then by a sample."""

    def __init__(self, call: FunctionCall) -> None:
        self._call, self._sample = call, HashSample(["x"])

    def add(self, values: DerivedValues, held: Array, hashes: Array) -> None:
        column = values.computed(self._call.arguments[0])
        assert isinstance(column, DerivedNumbers)
        self._sample.add(hashes[~held], [column.values[~held]])

    def done(self) -> BinEdges:
        count = _written_number(self._call)
        numbers = self._sample.values("x")
        if not len(numbers):
            raise DataError(f"`{self._call.key}`: no training row has a value")
        edges = np.unique(np.quantile(numbers, [place / count for place in range(1, count)]))
        return BinEdges(tuple(edges[edges > numbers.min()].tolist()))


class LagFit:
    """The value of earlier rows, for every number of rows that are earlier. Rows without a moment are left out."""

    def __init__(self, call: FunctionCall) -> None:
        self._call = call
        self._places: dict[GroupKey, int] = {}
        self._pieces: list[tuple[Array, Array, Array, Array]] = []
        self._rows = 0

    def add(self, values: DerivedValues, held: Array, hashes: Array) -> None:
        codes, keys = group_keys([values.computed(part) for part in self._call.by], values.rows)
        places = np.array([self._places.setdefault(key, len(self._places)) for key in keys], dtype=np.int64)[codes]
        moments, unknown = values.moments()
        column = values.computed(self._call.arguments[0])
        assert isinstance(column, DerivedNumbers)
        self._rows += values.rows
        if self._rows > MOST_EARLIER:
            raise DataError(
                f"more than {MOST_EARLIER:,} rows, which are kept with the model, so that it can look back: use fewer rows"
            )
        self._pieces.append(tuple(one[~unknown] for one in (places, moments, column.values, held)))  # type: ignore[arg-type]

    def done(self) -> EarlierValues:
        places, moments, numbers, held = (np.concatenate([piece[i] for piece in self._pieces]) for i in range(4))
        order = np.lexsort((numbers, moments, places))  # rows of one moment: any order gives the same to rows after them
        places, moments, numbers, held = places[order], moments[order], numbers[order], held[order]
        self._check_order(places, moments, held)
        counts = np.bincount(places, minlength=len(self._places))
        ends = np.cumsum(counts)
        look_back = lagged if self._call.name == "lag" else rolling_mean
        back = _written_number(self._call)
        results = [
            look_back(numbers[end - count : end], back) for count, end in zip(counts.tolist(), ends.tolist(), strict=True)
        ]
        return EarlierValues(tuple(self._places), counts.astype(np.int64), moments, np.concatenate(results or [np.zeros(0)]))

    def _check_order(self, places: Array, moments: Array, held: Array) -> None:
        """DataError if a training row comes after a held-out row of its group: it would look back at what is held out."""
        after = np.zeros(len(held), dtype=np.bool_)
        if held.any():
            first = np.full(len(self._places), np.inf)
            np.minimum.at(first, places[held], moments[held].astype(np.float64))
            after = ~held & (moments.astype(np.float64) > first[places])
        if after.any():
            group = [*self._places][int(places[int(after.argmax())])]
            named = " of " + ", ".join(str(part) for part in group) if group else ""
            raise DataError(
                f"`{self._call.key}`: {int(after.sum()):,} training rows come after held-out rows{named}, and would "
                "look back at them: hold out the latest rows with holdout_latest, or whole groups with holdout_group"
            )


def lagged(numbers: Array, back: int) -> Array:
    """For 0 to n earlier rows: the value of the one that is `back` rows earlier."""
    gone = np.full(min(back, len(numbers) + 1), np.nan)
    return np.concatenate([gone, numbers[: max(0, len(numbers) + 1 - back)]])[: len(numbers) + 1] if back > 0 else numbers


def rolling_mean(numbers: Array, back: int) -> Array:
    """For 0 to n earlier rows: the mean of the last `back` of them that have a value."""
    padded = np.concatenate([np.full(back, np.nan), numbers])
    windows = np.lib.stride_tricks.sliding_window_view(padded, back)
    at_once = max(1, _WINDOW_VALUES // back)
    pieces = [_means(windows[start : start + at_once]) for start in range(0, len(windows), at_once)]
    return np.concatenate(pieces)


def _means(windows: Array) -> Array:
    there = ~np.isnan(windows)
    count = there.sum(1)
    return np.where(count > 0, np.where(there, windows, 0.0).sum(1) / np.maximum(count, 1), np.nan)


def _written_number(call: FunctionCall) -> int:
    number = call.arguments[1]
    assert isinstance(number, LiteralValue) and isinstance(number.value, float)
    return int(number.value)
