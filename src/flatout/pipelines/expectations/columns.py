"""What a table's columns hold: counts, shares of missing values, ranges, and how values are spread."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError

_MOST_VALUES = 1000  # different texts of a column that are counted one by one
_BINS, _FEW = 10, 50
_PARQUET = (".parquet", ".pq")


@contextmanager
def _said(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
        raise DataError(f"{path} can't be read as a table: {str(error).splitlines()[0]}") from error


def read_table(path: Path, delimiter: str | None) -> Any:
    """A `pyarrow.Table`. Parquet by its suffix, everything else as text with a header, also compressed."""
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    with _said(path):
        if path.suffix in _PARQUET or path.is_dir():
            return parquet.read_table(path)
        how = csv.ParseOptions(delimiter=delimiter or _delimiter_of(path), newlines_in_values=True)
        missing = csv.ConvertOptions(
            null_values=["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"], strings_can_be_null=True
        )
        if path.suffix == ".xz":
            with lzma.open(path) as opened:
                return csv.read_csv(opened, parse_options=how, convert_options=missing)
        return csv.read_csv(path, parse_options=how, convert_options=missing)


def _delimiter_of(path: Path) -> str:
    """The character of these that the header has most often."""
    import pyarrow as pa

    if path.suffix == ".xz":
        with lzma.open(path) as file:
            head = file.read(65536)
    else:
        with pa.input_stream(str(path), compression="detect") as stream:
            head = stream.read(65536)
    header = head.split(b"\n", 1)[0]
    return max((",", ";", "\t", "|"), key=lambda one: header.count(one.encode()))


def column_kind(kind: Any) -> str:
    """number, whole, text, date or truth; other types by Arrow's name."""
    import pyarrow as pa

    types = pa.types
    if types.is_integer(kind):
        return "whole"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_boolean(kind):
        return "truth"
    if types.is_temporal(kind):
        return "date"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
        return "text"
    return "none" if types.is_null(kind) else str(kind)


def look_at(column: Any, edges: list[float] | None = None) -> dict[str, Any]:
    """What is known of one column, as JSON. `edges`: of an earlier version, so that both are counted in the same bins."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column_kind(column.type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    found: dict[str, Any] = {"kind": kind, "missing": column.null_count, "rows": len(column)}
    values = column.drop_null()
    if kind in ("number", "whole"):
        values = values.cast(pa.float64())
        values = values.filter(pc.is_finite(values))
        found["missing"] = len(column) - len(values)
        found["different"] = pc.count_distinct(values).as_py()
        if kind == "whole" and found["different"] <= _FEW:
            found["values"] = _counted(values.cast(pa.int64()))
        if len(values):
            found["low"], found["high"] = pc.min(values).as_py(), pc.max(values).as_py()
            found["edges"] = edges if edges is not None else _deciles(values)
            found["bins"] = _counts(values, found["edges"])
    elif kind in ("text", "truth"):
        found["different"] = pc.count_distinct(values).as_py()
        found["values"] = _counted(values)
    elif kind == "date" and len(values):
        found["low"], found["high"] = (str(one.as_py()) for one in (pc.min(values), pc.max(values)))
    return found


def _counted(values: Any) -> dict[str, int]:
    """The most frequent ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    counted = pc.value_counts(values.cast(pa.string()))
    pairs = ((one["values"].as_py(), one["counts"].as_py()) for one in counted)
    return dict(sorted(pairs, key=lambda one: (-one[1], one[0]))[:_MOST_VALUES])


def _deciles(values: Any) -> list[float]:
    import pyarrow.compute as pc

    cuts = pc.quantile(values, q=[place / _BINS for place in range(1, _BINS)]).to_pylist()
    return sorted({float(cut) for cut in cuts})


def _counts(values: Any, edges: list[float]) -> list[int]:
    import numpy as np

    places = np.searchsorted(np.asarray(edges), values.to_numpy(), side="left")
    return [int(one) for one in np.bincount(places, minlength=len(edges) + 1)]
