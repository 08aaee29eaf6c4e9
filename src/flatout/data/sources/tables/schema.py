"""Types of the columns of a table: plain types, the type that holds two others, and converting to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.base.errors import DataError

Types = dict[str, Any]
"""Column -> pyarrow.DataType, in the order of the table."""


def plain(kind: Any) -> Any:
    """The type of the values, however they are stored: a dictionary of strings is a string."""
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
    """The type that holds the values of both types exactly (integers and floats: float64); None if there is none."""
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


def check_distinct(names: Sequence[str], file: str) -> None:
    """DataError if two columns have the same name."""
    places: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if places.setdefault(name, place) != place:
            raise DataError(f"{file}: columns {places[name]} and {place} are both called {name!r}: rename one of them")


def told(kind: Any) -> str:
    """A type in plain words, for messages."""
    import pyarrow as pa

    if pa.types.is_string(kind):
        return "text"
    return "empty" if pa.types.is_null(kind) else str(kind)


def as_types(batch: Any, types: Mapping[str, Any], file: str) -> Any:
    """The batch with exactly these columns and types. A value that its new type can't hold is an error."""
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
                    f"{file}: column {name!r} can't be read as {told(kind)} ({told(column.type)} in the file): {error}"
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=list(types))
