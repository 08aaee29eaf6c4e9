"""A second table whose columns belong to the rows of the first, by a key that both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flatout.data.fitted.derived.derived_values import (
    DATE,
    TEXT,
    TRUTH,
    Array,
    DerivedColumn,
    DerivedDates,
    DerivedNumbers,
    DerivedTexts,
)
from flatout.data.fitted.derived.fitted_tables import UNKNOWN_GROUP, GroupKey, places_of


@dataclass(frozen=True)
class JoinedTable:
    """`on` are columns of the first table, in the order of the keys; `values` has a value for each key, None where missing:
    numbers, truths, texts, and dates as microseconds."""

    file: str
    on: tuple[str, ...]
    keys: tuple[GroupKey, ...]
    kinds: Mapping[str, str]
    values: Mapping[str, Sequence[Any]]

    def places(self, columns: Sequence[DerivedColumn], rows: int) -> Array:
        """The row of the second table for each row, or UNKNOWN_GROUP; the same for all columns."""
        return places_of(columns, rows, self._known)

    def column(self, name: str, places: Array) -> DerivedColumn:
        kind = self.kinds[name]
        if kind == TEXT:
            used, codes = np.unique(places, return_inverse=True)
            texts = [None if place == UNKNOWN_GROUP else self.values[name][place] for place in used.tolist()]
            return DerivedTexts(codes.reshape(-1), texts)
        table = self._tables[name]
        if kind == DATE:
            found = table[places]
            return DerivedDates(np.where(found.mask, 0, found.data), found.mask)
        return DerivedNumbers(table[places], kind == TRUTH)

    @cached_property
    def _known(self) -> dict[GroupKey, int]:
        return {key: place for place, key in enumerate(self.keys)}

    @cached_property
    def _tables(self) -> dict[str, Any]:
        """The values of each column, and at the end a missing one, for UNKNOWN_GROUP."""
        tables: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            listed = [*self.values[name], None]
            if kind == DATE:
                missing = [value is None for value in listed]
                tables[name] = np.ma.MaskedArray(np.array([value or 0 for value in listed], dtype=np.int64), missing)
            elif kind != TEXT:
                tables[name] = np.array([np.nan if value is None else float(value) for value in listed], dtype=np.float64)
        return tables

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "on": list(self.on),
            "keys": [list(key) for key in self.keys],
            "kinds": dict(self.kinds),
            "values": {name: list(values) for name, values in self.values.items()},
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> JoinedTable:
        keys = tuple(tuple(key) for key in written["keys"])
        return cls(written["file"], tuple(written["on"]), keys, dict(written["kinds"]), dict(written["values"]))
