"""Tables in memory that other libraries made, known by what Arrow needs to read them; the libraries are not imported."""

from __future__ import annotations

import json
from typing import Any

from flatout.base.errors import DataError

NAME = "the data"  # in messages


def is_table(given: Any) -> bool:
    """Whether Arrow can read it as a table: a DataFrame of pandas or Polars, a pyarrow.Table. A Series is only a column."""
    if isinstance(given, type) or not (hasattr(given, "columns") or hasattr(given, "schema")):
        return False
    return hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__") or hasattr(given, "__dataframe__")


def arrow_table(given: Any) -> Any:
    """As a pyarrow.Table, without the index of a pandas DataFrame: it names a row and is no value of it."""
    import pyarrow as pa

    try:
        table = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else _read(given)
    except pa.ArrowException as error:
        raise DataError(f"{NAME}: {error}") from error
    except (TypeError, ValueError) as error:
        if not is_table(given):
            raise
        raise DataError(f"{NAME} can't be read as a table: {error}") from error
    for field in table.schema:
        if isinstance(field.type, pa.BaseExtensionType):
            kind = field.type.extension_name
            raise DataError(f"column {field.name!r} is of the type {kind}: make it text, a number or a date, or drop it")
    about_pandas = (table.schema.metadata or {}).get(b"pandas")
    index = json.loads(about_pandas)["index_columns"] if about_pandas else []
    named = [name for name in index if isinstance(name, str) and name in table.column_names]
    return (table.drop_columns(named) if named else table).replace_schema_metadata(None)


def _read(given: Any) -> Any:
    import pyarrow as pa

    if hasattr(given, "__arrow_c_stream__") or not hasattr(given, "__dataframe__"):
        return pa.table(given)
    from pyarrow.interchange import from_dataframe

    return from_dataframe(given)
