"""What the parts of a table agree on: one type a column, wide enough for all of them; and where a row stands, for messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from flatout.base.errors import DataError, did_you_mean

Types = dict[str, Any]
"""Column -> pyarrow.DataType, in the order of the table."""


class Where:
    """Where the rows of one batch stand: `first` and on, or each where `rows` says, counted from 0 in `file`.

    `line` turns such a count into the line of a text file; without it, rows are counted from 1.
    """

    def __init__(self, file: str, first: int = 0, rows: Any = None, line: Callable[[int], int] | None = None) -> None:
        self.file = file
        self._first = first
        self._rows = rows
        self._line = line

    def of(self, i: int) -> str:
        """Row `i` of the batch as a person finds it: "clicks/part-3.csv, line 17"."""
        row = self._first + i if self._rows is None else int(self._rows[i])
        return f"{self.file}, row {row + 1}" if self._line is None else f"{self.file}, line {self._line(row)}"

    def part(self, start: int, stop: int) -> Where:
        """Of the rows `start` to `stop` of the batch."""
        rows = None if self._rows is None else self._rows[start:stop]
        return Where(self.file, self._first + start, rows, self._line)

    def only(self, kept: np.ndarray[Any, Any]) -> Where:
        """Of the rows that a bool mask keeps."""
        rows = np.arange(self._first, self._first + len(kept)) if self._rows is None else np.asarray(self._rows)
        return Where(self.file, 0, rows[kept], self._line)


class TableFile(Protocol):
    """One file, or one query, of a table."""

    name: str
    types: Types
    rows: int | None

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        """Record batches of these columns in storage order, each column of its type or of one that casts to it."""

    def blocks(self) -> tuple[int, ...] | None:
        """Rows of each stretch that is stored together; None where that is not known."""

    def fingerprint(self) -> str: ...


def plain(kind: Any) -> Any:
    """The type that values have once it does not matter how they were stored."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_date64(kind):
        return pa.date32()
    return kind


def wider(a: Any, b: Any) -> Any | None:
    """The type that holds the values of both exactly (whole numbers with fractions: as float64); None where none does."""
    import pyarrow as pa

    numbers = pa.types.is_integer, pa.types.is_floating
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if all(any(is_number(kind) for is_number in numbers) for kind in (a, b)):
        return _wider_number(a, b)
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b):
        units = ("s", "ms", "us", "ns")
        return pa.timestamp(max(a.unit, b.unit, key=units.index), a.tz) if a.tz == b.tz else None
    if {pa.types.is_date(a), pa.types.is_date(b)} == {True, False}:
        moment = b if pa.types.is_date(a) else a
        return moment if pa.types.is_timestamp(moment) and moment.tz is None else None
    return None


def _wider_number(a: Any, b: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_floating(a) and pa.types.is_floating(b):
        return max(a, b, key=lambda kind: kind.bit_width)
    if pa.types.is_floating(a) or pa.types.is_floating(b):
        number, whole = (a, b) if pa.types.is_floating(a) else (b, a)
        return number if whole.bit_width <= 16 else pa.float64()  # float32 is exact up to 24 bits
    if pa.types.is_signed_integer(a) == pa.types.is_signed_integer(b):
        return max(a, b, key=lambda kind: kind.bit_width)
    signed, unsigned = (a, b) if pa.types.is_signed_integer(a) else (b, a)
    bits = max(signed.bit_width, 2 * unsigned.bit_width)
    return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits, pa.float64())


def agreed(parts: Sequence[TableFile], wanted: Sequence[str] | None) -> Types:
    """The columns of all parts with types wide enough for each; DataError names the files and columns that don't fit."""
    first = parts[0]
    names = list(first.types) if wanted is None else list(wanted)
    for part in parts:
        check_columns(names, part, strict=wanted is None, like=first.name)
    types: Types = {}
    for name in names:
        kind, since = plain(first.types[name]), first.name
        for part in parts[1:]:
            other = plain(part.types[name])
            both = wider(kind, other)
            if both is None:
                raise DataError(
                    f"column {name!r} is {told(kind)} in {since} and {told(other)} in {part.name}: "
                    "write the files with one type, or declare the column under categorical"
                )
            if both != kind:
                kind, since = both, part.name
        types[name] = kind
    return types


def check_columns(names: Sequence[str], part: TableFile, strict: bool, like: str) -> None:
    lacking = [name for name in names if name not in part.types]
    if lacking and part.name == like:
        raise DataError(f"{part.name} has no column {lacking[0]!r}; {did_you_mean(lacking[0], part.types)}")
    if lacking:
        raise DataError(
            f"{part.name} lacks {columns_of(lacking)}, which {like} has: all files of a table need the same columns"
        )
    more = sorted(set(part.types) - set(names), key=list(part.types).index)
    if more and strict:
        raise DataError(
            f"{part.name} has {columns_of(more)} besides those of {like}: all files of a table need the same columns, "
            "or name the columns to read"
        )


def columns_of(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{'column' if len(names) == 1 else 'columns'} {shown}"


def check_distinct(names: Sequence[str], file: str) -> None:
    """Two columns of one name can't be told apart."""
    places: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if places.setdefault(name, place) != place:
            raise DataError(f"{file}: columns {places[name]} and {place} are both called {name!r}: rename one of them")


def told(kind: Any) -> str:
    """A type in a word a person uses."""
    import pyarrow as pa

    if pa.types.is_string(kind):
        return "text"
    return "empty" if pa.types.is_null(kind) else str(kind)


def as_types(batch: Any, types: Mapping[str, Any], where: Where) -> Any:
    """The batch with exactly these columns and types. A value that its new type can't hold is an error, never another value."""
    import pyarrow as pa

    columns = []
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, kind in types.items():
        column = given[name]
        if column.type != kind:
            try:
                column = column.cast(plain(column.type)).cast(kind)
            except pa.ArrowException as error:
                raise DataError(
                    f"{where.file}: column {name!r} can't be read as {told(kind)} ({told(column.type)} in the file): {error}"
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=list(types))
