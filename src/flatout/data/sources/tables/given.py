"""A table in memory: columns by name as lists or arrays, or anything that pyarrow reads as a table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from flatout.base.errors import DataError, UsageError, did_you_mean
from flatout.data.files.bad import Bad
from flatout.data.fitted.carried import CarriedColumns
from flatout.data.order.split import hash_batch
from flatout.data.sources.tables.arrow import Where
from flatout.data.sources.tables.frames import NAME, arrow_table, is_table
from flatout.data.sources.tables.scan import Scan, columns_of, listed
from flatout.data.sources.tables.schema import Types, as_types, check_distinct, plain


def scan_table(given: Any, label: str | None, *, columns: Sequence[str] | None = None, text: str | Sequence[str] = ()) -> Scan:
    """A whole table in memory to train on. Its columns have the types that the same columns of a file would have."""
    import pyarrow as pa

    table = arrow_table(given) if is_table(given) else _from_mapping(given, list(given), CarriedColumns())
    check_distinct(table.column_names, NAME)
    named = [text] if isinstance(text, str) else text
    for name in (*(columns or ()), *named, *([] if label is None else [label])):
        if name not in table.column_names:
            raise DataError(f"{NAME} has no column {name!r}; {did_you_mean(name, table.column_names)}")
    if not table.num_rows:
        raise DataError(f"{NAME} has columns and no rows")
    kinds = {field.name: pa.string() if field.name in named else plain(field.type) for field in table.schema}
    types = kinds if columns is None else {name: kinds[name] for name in columns}
    batches = [as_types(batch.select(list(types)), types, NAME) for batch in table.to_batches() if batch.num_rows]
    return Scan([GivenPart(pa.Table.from_batches(batches).combine_chunks())], types, Bad())


def scan_given(given: Any, wanted: Sequence[str], carried: CarriedColumns | None = None) -> Scan:
    """The columns `wanted` of {"age": [39, 50], ...}, of a pyarrow.Table or of a DataFrame, and those that are carried along.

    Other columns are ignored.
    """
    also = carried or CarriedColumns()
    part = GivenPart(_from_mapping(given, wanted, also) if isinstance(given, Mapping) else _from_frame(given, wanted, also))
    if not part.rows:
        raise DataError(f"{NAME} has columns and no rows")
    return Scan([part], dict(part.types), Bad())


class GivenPart:
    """One pyarrow.Table."""

    name = NAME

    def __init__(self, table: Any) -> None:
        self._table = table
        self.types: Types = {field.name: plain(field.type) for field in table.schema}
        self.rows: int | None = table.num_rows

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        row = 0
        for batch in self._table.select(list(types)).to_batches(max_chunksize=rows_at_once):
            yield batch, Where(self.name, row)
            row += batch.num_rows

    def blocks(self) -> tuple[int, ...] | None:
        return None if self.rows is None else (self.rows,)

    def fingerprint(self) -> str:
        return hashlib.blake2b(hash_batch(self._table, 0).tobytes(), digest_size=16).hexdigest()


def _from_mapping(given: Mapping[str, Any], wanted: Sequence[str], also: CarriedColumns) -> Any:
    import pyarrow as pa

    _check_names(list(given), wanted)
    also.check(given)
    columns = {name: _column(name, given[name]) for name in dict.fromkeys([*wanted, *also.sources])}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError("columns differ in length: " + ", ".join(f"{name!r} has {rows}" for name, rows in lengths.items()))
    return pa.table(columns)


def _column(name: str, values: Any) -> Any:
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim > 1:
        raise DataError(f"column {name!r} is one value a row, got an array of shape {list(values.shape)}")
    try:
        if isinstance(values, str | bytes):
            raise TypeError
        len(values)
    except TypeError:
        raise DataError(f"column {name!r} is a list or an array, one value a row, got {values!r}") from None
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"column {name!r} can't be read as values of one kind: {error}") from error


def _from_frame(given: Any, wanted: Sequence[str], also: CarriedColumns) -> Any:
    try:
        table = arrow_table(given)
    except (TypeError, ValueError):
        form = f"{{{wanted[0]!r}: [...], ...}}"
        raise UsageError(
            f"the run was trained on a table: give its columns by name, as {form}, a pyarrow.Table or a DataFrame; "
            f"got {type(given).__name__}"
        ) from None
    check_distinct(table.column_names, NAME)
    _check_names(table.column_names, wanted)
    also.check(table.column_names)
    return table.select(list(dict.fromkeys([*wanted, *also.sources])))


def _check_names(names: Sequence[str], wanted: Sequence[str]) -> None:
    if lacking := [name for name in wanted if name not in names]:
        has = f"it has {listed(names)}" if names else "it has none"
        raise DataError(f"{NAME} lacks {columns_of(lacking)}, which the model was trained with; {has}")
