"""One row of a table, encoded as `TableHost.rows` encodes many, in a fiftieth of the time: no arrays are made for it.

A row with a value that is unusual in any way is left to `TableHost.rows`, which also has the words for what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.fitted.codings import LARGEST, Category, Date, Number, TargetEncoding, bucket_of
from flatout.data.fitted.dates import date_part, to_instant
from flatout.data.fitted.table_rows import TableHost
from flatout.data.fitted.values import to_text

Encode = Callable[[Any], float | tuple[float, ...]]
_UNUSUAL = (KeyError, ValueError, TypeError, OverflowError, DataError)
_NAN = float("nan")


class OneRow:
    def __init__(self, host: TableHost) -> None:
        self._derives = host.derived is not None
        self._numeric: list[tuple[str, Encode, bool]] = []  # name, function, whether it gives several numbers
        self._ids: list[tuple[str, Callable[[Any], int]]] = []
        for coding in host.codings.columns:
            match coding:
                case Number():
                    self._numeric.append((coding.name, _number(coding), False))
                case Date():
                    self._numeric.append((coding.name, _date(coding), True))
                case TargetEncoding():
                    self._numeric.append((coding.name, _means(coding), True))
                case Category():
                    self._ids.append((coding.name, _category(coding)))

    def encode(self, row: Mapping[str, Any]) -> dict[str, list[float] | list[int]] | None:
        """The numbers and the ids of the row, in their order; None if the row needs `TableHost.rows`."""
        if self._derives:
            return None
        numeric: list[float] = []
        try:
            for name, encode, several in self._numeric:
                if several:
                    numeric.extend(encode(row[name]))  # type: ignore[arg-type]
                else:
                    numeric.append(encode(row[name]))  # type: ignore[arg-type]
            ids = [find(row[name]) for name, find in self._ids]
        except _UNUSUAL:
            return None
        encoded: dict[str, list[float] | list[int]] = {}
        if numeric:
            encoded["numeric"] = numeric
        if ids:
            encoded["ids"] = ids
        return encoded


def _number(coding: Number) -> Encode:
    shift = coding.shift

    def encode(value: Any) -> float:
        if value is None:
            return _NAN
        if type(value) is not float and type(value) is not int:
            raise TypeError("an unusual number")
        exact = float(value)
        if exact != exact:
            return _NAN
        shifted = exact - shift if shift else exact
        if not (-LARGEST <= exact <= LARGEST and -LARGEST <= shifted <= LARGEST):
            raise ValueError("a number that is too large")
        return shifted

    return encode


def _category(coding: Category) -> Callable[[Any], int]:
    name, buckets = coding.name, coding.buckets
    places = {text: place for place, text in enumerate(coding.categories, 1)}

    def find(value: Any) -> int:
        return places.get(value if type(value) is str else to_text(value, name), 0)

    def hashed(value: Any) -> int:
        assert buckets is not None
        return int(bucket_of([to_text(value, name)], buckets)[0])

    return find if buckets is None else hashed


def _date(coding: Date) -> Encode:
    missing = (_NAN,) * len(coding.parts)

    def encode(value: Any) -> tuple[float, ...]:
        instant = to_instant(value, coding.format)
        if instant is None:
            return missing
        at = np.array([instant], np.int64)
        return tuple(float(date_part(part, at)[0]) for part in coding.parts)

    return encode


def _means(coding: TargetEncoding) -> Encode:
    find, rows = _category(coding.category), [tuple(row) for row in coding.means]
    return lambda value: rows[find(value)]
