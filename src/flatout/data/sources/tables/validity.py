"""Checks that the values of a record batch are valid.

Arrow's readers trust the lengths and offsets of a file: columns of a damaged file can point outside of their memory, and
reading such a value crashes the process. Arrow's full validation finds this, and text that is not UTF-8.
"""

from __future__ import annotations

from typing import Any

from flatout.base.errors import DataError
from flatout.data.files.damage import in_words

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # the years 1 and 9999, in days from 1970
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def checked(batch: Any, name: str, first_row: int = 0) -> Any:
    """The batch, if it is valid. DataError names the file, the column and, for a single value, the row."""
    import pyarrow as pa

    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        for column, field in zip(batch.columns, batch.schema, strict=True):
            _check_column(column, f"{name}: column {field.name!r}", first_row)
        raise DataError(f"{name} is damaged: {in_words(error)}") from error
    for column, field in zip(batch.columns, batch.schema, strict=True):
        if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
            _check_dates(column, f"{name}: column {field.name!r}", first_row)
    return batch


def _check_column(column: Any, where: str, first_row: int) -> None:
    import pyarrow as pa

    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        if "utf8" in str(error).lower().replace("-", ""):
            raise DataError(f"{where} holds text that is not UTF-8{_first_bad(column, first_row)}") from error
        raise DataError(f"{where} is damaged: {in_words(error)}") from error


def _first_bad(column: Any, first_row: int) -> str:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        return f", first in row {first_row + _first_wrong(column) + 1}"
    row = pc.index(column.indices, pa.scalar(_first_wrong(column.dictionary), column.indices.type)).as_py()
    return f", first in row {first_row + row + 1}" if row >= 0 else ""


def _first_wrong(values: Any) -> int:
    """By halves; a slice is checked separately."""
    import pyarrow as pa

    start, stop = 0, len(values)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            values.slice(start, middle - start).validate(full=True)
            start = middle
        except pa.ArrowException:
            stop = middle
    return start


def _check_dates(column: Any, where: str, first_row: int) -> None:
    """Python dates have the years 1 to 9999, and so do the parts of dates."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = 1 if pa.types.is_date32(column.type) else _PER_DAY["ms" if pa.types.is_date64(column.type) else column.type.unit]
    numbers = column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    low, high = (
        max(_FIRST_DAY * days, -(1 << 63)),
        min((_LAST_DAY + 1) * days, 1 << 63) - 1,
    )  # nanoseconds reach from 1677 to 2262
    found = pc.min_max(numbers).as_py()
    if found["min"] is None or (low <= found["min"] and found["max"] <= high):
        return
    outside = pc.or_(pc.less(numbers, low), pc.greater(numbers, high))
    row = pc.index(outside, True).as_py()
    raise DataError(f"{where} holds a date outside of the years 1 to 9999, first in row {first_row + row + 1}: is it damaged?")
