"""What was fitted for expressions: a value for each group, edges of bins, and the values before a moment; all as plain JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flatout.data.fitted.derived.derived_values import Array, DerivedColumn, DerivedNumbers, keys_of
from flatout.data.fitted.derived.number_functions import binned

GroupKey = tuple[str | None, ...]
UNKNOWN_GROUP = -1


def group_keys(columns: Sequence[DerivedColumn], rows: int) -> tuple[Array, list[GroupKey]]:
    """Codes of the rows into a list of the groups that occur. Without columns all rows are one group."""
    if not columns:
        return np.zeros(rows, np.int64), [()]
    codes, keys = keys_of(columns[0])
    found: list[GroupKey] = [(key,) for key in keys]
    for column in columns[1:]:
        more, others = keys_of(column)
        pairs, codes = np.unique(codes * len(others) + more, return_inverse=True)
        codes = codes.reshape(-1)
        found = [(*found[pair // len(others)], others[pair % len(others)]) for pair in pairs.tolist()]
    return np.broadcast_to(codes, rows), found


def places_of(columns: Sequence[DerivedColumn], rows: int, known: Mapping[GroupKey, int]) -> Array:
    """The place of each row's group, or UNKNOWN_GROUP."""
    codes, keys = group_keys(columns, rows)
    return np.array([known.get(key, UNKNOWN_GROUP) for key in keys], dtype=np.int64)[codes]


@dataclass(frozen=True)
class GroupValues:
    """A number for each group of the training rows, and one for all other groups; NaN is missing."""

    keys: tuple[GroupKey, ...]
    values: tuple[float, ...]
    otherwise: float

    def of(self, columns: Sequence[DerivedColumn], rows: int) -> tuple[DerivedNumbers, int]:
        """The values, and how many rows have a group that training had not."""
        places = places_of(columns, rows, self._known)
        return DerivedNumbers(self._table[places]), int((places == UNKNOWN_GROUP).sum())

    @cached_property
    def _known(self) -> dict[GroupKey, int]:
        return {key: place for place, key in enumerate(self.keys)}

    @cached_property
    def _table(self) -> Array:
        return np.array([*self.values, self.otherwise], dtype=np.float64)

    def to_json(self) -> dict[str, Any]:
        values = [_to_json(value) for value in self.values]
        return {"groups": [list(key) for key in self.keys], "values": values, "otherwise": _to_json(self.otherwise)}


@dataclass(frozen=True)
class BinEdges:
    edges: tuple[float, ...]

    def of(self, column: DerivedNumbers) -> DerivedNumbers:
        return binned(column, self.edges)

    def to_json(self) -> dict[str, Any]:
        return {"edges": list(self.edges)}


@dataclass(frozen=True, eq=False)
class EarlierValues:
    """For each group its moments in order, and a result for each number of moments that are before a row, from 0 on.

    `counts` has the moments of each group. A row sees only rows that are strictly earlier, whichever rows come with it.
    """

    keys: tuple[GroupKey, ...]
    counts: Array
    moments: Array  # int64 microseconds of dates, or float64
    results: Array  # one more than moments for each group

    def of(self, columns: Sequence[DerivedColumn], moments: Array, unknown: Array) -> tuple[DerivedNumbers, int, int]:
        """`moments` of the rows, and a mask of those without one. Also how many rows have a group that is not known, and how
        many come after all moments of their group."""
        groups = places_of(columns, len(moments), self._known)
        there = (groups != UNKNOWN_GROUP) & ~unknown
        group = np.where(there, groups, 0)
        if not len(self.keys):
            return DerivedNumbers(np.full(len(moments), np.nan)), len(moments), 0
        rank = np.searchsorted(self._ranks, np.where(unknown, 0, moments), "left")
        place = np.searchsorted(self._composite, group * self._span + rank, "left")
        before = place - self._starts[group]
        values = np.where(there, self.results[place + group], np.nan)
        later = there & (before == self.counts[group])
        return DerivedNumbers(values), int((groups == UNKNOWN_GROUP).sum()), int(later.sum())

    @cached_property
    def _known(self) -> dict[GroupKey, int]:
        return {key: place for place, key in enumerate(self.keys)}

    @cached_property
    def _ranks(self) -> Array:
        return np.unique(self.moments)

    @property
    def _span(self) -> int:
        return len(self._ranks) + 1

    @cached_property
    def _starts(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.counts)[:-1]]).astype(np.int64)

    @cached_property
    def _composite(self) -> Array:
        group = np.repeat(np.arange(len(self.counts)), self.counts)
        return np.asarray(group * self._span + np.searchsorted(self._ranks, self.moments, "left"))

    def to_json(self) -> dict[str, Any]:
        return {
            "groups": [list(key) for key in self.keys],
            "counts": self.counts.tolist(),
            "type": str(self.moments.dtype),
            "moments": _packed(self.moments),
            "results": _packed(self.results),
        }


FittedTable = GroupValues | BinEdges | EarlierValues


def table_from_json(written: Mapping[str, Any]) -> FittedTable:
    if "edges" in written:
        return BinEdges(tuple(written["edges"]))
    keys = tuple(tuple(key) for key in written["groups"])
    if "counts" in written:
        moments = _unpacked(written["moments"], written["type"])
        return EarlierValues(
            keys, np.array(written["counts"], dtype=np.int64), moments, _unpacked(written["results"], "float64")
        )
    values = tuple(_from_json(value) for value in written["values"])
    return GroupValues(keys, values, _from_json(written["otherwise"]))


def _to_json(value: float) -> float | None:
    return None if value != value else value


def _from_json(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _packed(values: Array) -> str:
    """Millions of numbers as text of a third of the size, exactly."""
    return base64.b64encode(np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"))).tobytes()).decode()


def _unpacked(text: str, dtype: str) -> Array:
    kind = np.dtype("int64" if dtype == "int64" else "float64")
    return np.frombuffer(base64.b64decode(text), kind.newbyteorder("<")).astype(kind)
