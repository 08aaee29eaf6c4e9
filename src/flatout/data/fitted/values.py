"""Raw values of a table in three forms: numbers, instants, and texts with codes.

Here from Python lists and NumPy arrays; `tables/arrow.py` gives equal results from record batches.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sized
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from flatout.base.errors import DataError, did_you_mean
from flatout.data.fitted.dates import to_instant

Array = np.ndarray[Any, Any]
Texts = tuple[Array, list[str | None]]


class Values(Protocol):
    """Columns by name. DataError if a column can't be converted to the form asked for."""

    @property
    def rows(self) -> int: ...

    def numbers(self, name: str) -> Array:
        """float64, NaN where missing."""
        ...

    def instants(self, name: str, format: str | None) -> tuple[Array, Array]:
        """int64 microseconds since 1970, and a mask of missing values."""
        ...

    def texts(self, name: str) -> Texts:
        """int64 codes into a list of texts, which may have duplicates; None is the missing value."""
        ...


class PlainValues:
    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        lengths = {name: _length(name, column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError("columns differ in length: " + ", ".join(f"{name} has {rows}" for name, rows in lengths.items()))
        self.rows = next(iter(lengths.values()), 0)

    def numbers(self, name: str) -> Array:
        values = self._array(name)
        if values.dtype.kind in "biuf":
            return np.asarray(values.astype(np.float64))
        if values.dtype.kind == "O":
            return np.fromiter((_number(value, name, row) for row, value in enumerate(values)), np.float64, len(values))
        raise DataError(f"column {name!r} holds numbers; row 0 is {_shown(values[0])}" if len(values) else f"{name!r} is empty")

    def instants(self, name: str, format: str | None) -> tuple[Array, Array]:
        values = self._array(name)
        if values.dtype.kind == "M":
            missing = np.isnat(values)
            return np.where(missing, 0, values.astype("datetime64[us]").astype(np.int64)), missing
        found = [_instant(value, format, name, row) for row, value in enumerate(values.tolist())]
        missing = np.fromiter((instant is None for instant in found), np.bool_, len(found))
        return np.fromiter((instant or 0 for instant in found), np.int64, len(found)), missing

    def texts(self, name: str) -> Texts:
        values = self._array(name)
        if values.dtype.kind in "biufM":
            distinct, codes = np.unique(values, return_inverse=True)
            return codes.reshape(-1).astype(np.int64), [to_text(value, name) for value in distinct]
        places: dict[str | None, int] = {}
        codes = np.empty(len(values), np.int64)
        for row, value in enumerate(values.tolist()):
            try:
                codes[row] = places.setdefault(to_text(value, name), len(places))
            except DataError as error:
                raise DataError(f"row {row}: {error}") from error
        return codes, list(places)

    def _array(self, name: str) -> Array:
        if name not in self._columns:
            raise DataError(f"no column {name!r}, which the model was trained with; {did_you_mean(name, self._columns)}")
        column: Any = self._columns[name]
        if isinstance(column, Tensor):
            column = column.detach().cpu().numpy()
        if not isinstance(column, np.ndarray):
            plain = list(column)
            column = np.empty(len(plain), dtype=object)
            column[:] = plain
        if column.ndim != 1:
            raise DataError(f"column {name!r} is one value a row, got an array of shape {list(column.shape)}")
        return np.asarray(column)


def _length(name: str, column: Any) -> int:
    if isinstance(column, str | bytes) or not isinstance(column, Sized):
        raise DataError(
            f"column {name!r} is a list or an array, one value a row, got {_shown(column)}; of a single row it is [value]"
        )
    return len(column)


def to_text(value: Any, name: str) -> str | None:
    """The name of a category. 3, 3.0 and "3" are the same: integers become floats in a column with missing values."""
    if isinstance(value, str):
        return str(value)
    if value is None or value != value:
        return None
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating | Decimal):
        exact = float(value)
        return str(int(exact)) if exact.is_integer() else repr(exact)
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, dt.datetime):
        naive = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return naive.isoformat()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    raise DataError(f"column {name!r}: {_shown(value)} can't be a category; expected text, a whole number or true and false")


def parse_instants(texts: Iterable[str | None], format: str | None) -> tuple[Array, Array, Array]:
    """Microseconds of each text, a mask of missing ones, and a mask of those that are not dates."""
    instants, missing, bad = [], [], []
    for text in texts:
        try:
            instant = to_instant(text, format)
            bad.append(False)
        except (ValueError, TypeError):
            instant = None
            bad.append(True)
        instants.append(instant or 0)
        missing.append(instant is None)
    return np.array(instants, dtype=np.int64), np.array(missing, dtype=np.bool_), np.array(bad, dtype=np.bool_)


def not_a_date(name: str, value: Any, format: str | None) -> str:
    wanted = "ISO 8601, such as 2024-01-31 or 2024-01-31T18:30:00" if format is None else f"the format {format!r}"
    return f"column {name!r} has {_shown(value)}, which is no date in {wanted}"


def _number(value: Any, name: str, row: int) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, int | float | np.number | np.bool_ | Decimal):
        return float(value)
    raise DataError(f"column {name!r} holds numbers; row {row} has {_shown(value)}. Missing values are None or NaN")


def _instant(value: Any, format: str | None, name: str, row: int) -> int | None:
    try:
        return to_instant(value, format)
    except (ValueError, TypeError) as error:
        raise DataError(f"row {row}: {not_a_date(name, value, format)}") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
