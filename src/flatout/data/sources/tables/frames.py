"""Tables in memory that other libraries made, known by what Arrow needs to read them; the libraries are not imported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.sources.tables.schema import check_distinct, plain

NAME = "the data"  # in messages
_STREAMS = ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__")
_SOME = 1000  # values of a column, to name their types


def is_table(given: Any) -> bool:
    """Whether Arrow can read it as a table: a DataFrame of pandas or Polars, a pyarrow.Table. A Series is only a column."""
    if isinstance(given, type) or not any(hasattr(given, name) for name in _STREAMS):
        return False
    return hasattr(given, "columns") or hasattr(given, "schema")


def is_lazy(given: Any) -> bool:
    """Whether it is a query of Polars that has not run."""
    return hasattr(given, "collect_schema") and not is_table(given)


def arrow_table(given: Any) -> Any:
    """As a pyarrow.Table, without the index of a pandas DataFrame: it names a row and is no value of it."""
    import pyarrow as pa

    if _is_pandas(given) and not hasattr(given, "columns"):
        raise DataError(
            f"{NAME}: got a {type(given).__name__}, one row or one column: df.iloc[[0]] is a DataFrame of one row, "
            "df[['age']] one of one column"
        )
    frame = _named_by_text(given) if _is_pandas(given) else given
    try:
        table = pa.Table.from_batches([frame]) if isinstance(frame, pa.RecordBatch) else _read(frame)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if not is_table(given):
            raise
        culprit = next(_unreadable(frame), None) if _is_pandas(given) else None
        raise DataError(culprit or f"{NAME} can't be read as a table: {error}") from error
    about_pandas = (table.schema.metadata or {}).get(b"pandas")
    index = json.loads(about_pandas)["index_columns"] if about_pandas else []
    named = [name for name in index if isinstance(name, str) and name in table.column_names]
    table = table.drop_columns(named) if named else table
    if named and table.num_columns < 2:
        raise DataError(
            f"{NAME} has {table.num_columns} column besides its index ({', '.join(named)}), and the index is no input: "
            "reset_index() makes columns of it"
        )
    return _decoded(table).replace_schema_metadata(None)


def _is_pandas(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "pandas"


def _named_by_text(frame: Any) -> Any:
    """Columns of a DataFrame may be numbers, or tuples if there are several levels; those of a table have names."""
    names = [str(name) for name in frame.columns]
    check_distinct(names, NAME)
    return frame if names == list(frame.columns) else frame.set_axis(names, axis=1)


def _read(given: Any) -> Any:
    import pyarrow as pa

    if hasattr(given, "__arrow_c_stream__") or not hasattr(given, "__dataframe__"):
        return pa.table(given)
    from pyarrow.interchange import from_dataframe

    return from_dataframe(given)


def _unreadable(frame: Any) -> Iterator[str]:
    """Columns of a DataFrame that Arrow can't read, each with the reason and what helps."""
    import pyarrow as pa

    for name in frame.columns:
        try:
            pa.array(frame[name], from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            values = frame[name]
            held = sorted({type(value).__name__ for value in values.head(_SOME)}) if values.dtype == object else []
            kind = " and ".join(held) if held else str(values.dtype)
            why = str(error.args[0] if error.args else error).partition("\n")[0].rstrip(".")
            yield (
                f"column {name!r} holds {kind}, which is no column of numbers, text or dates ({why}): make it one, such as "
                f"df[{name!r}].astype({_better(held, values)}), or drop it"
            )


def _better(held: list[str], values: Any) -> str:
    """The type that can hold the values: numbers that are too large for 64 bits are still numbers."""
    numbers = held and set(held) <= {"int", "float", "Decimal"}
    return "float" if numbers or isinstance(getattr(values.dtype, "subtype", None), np.dtype) else "str"


def _decoded(table: Any) -> Any:
    """Categories whose texts are views, as Polars has them, become text: Arrow can't look such texts up."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        kind = field.type
        values = kind.value_type if pa.types.is_dictionary(kind) else kind
        if isinstance(values, pa.BaseExtensionType):
            name = values.extension_name
            raise DataError(f"column {field.name!r} is of the type {name}: make it text, a number or a date, or drop it")
        if pa.types.is_duration(values):
            raise DataError(
                f"column {field.name!r} is a duration ({values}): make it a number, such as df[{field.name!r}]"
                ".dt.total_seconds(), or drop it"
            )
        if values is not kind and plain(values) != values:
            pieces = [
                pa.DictionaryArray.from_arrays(piece.indices, piece.dictionary.cast(plain(values))).cast(plain(values))
                for piece in table.column(place).chunks
            ]
            table = table.set_column(place, field.name, pa.chunked_array(pieces, plain(values)))
    return table
