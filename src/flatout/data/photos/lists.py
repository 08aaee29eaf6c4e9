"""Lists of images: CSV, TSV or Parquet with a path and a label a row; other columns are left alone."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError, did_you_mean

LISTS = (".csv", ".tsv", ".parquet")


def read_list(path: Path) -> tuple[list[str], list[Any]]:
    """The paths as they are written, and the labels."""
    kind = path.suffix.lower()
    if kind not in LISTS:
        raise DataError(f"images: {path} is neither a folder nor a list of images ({', '.join(LISTS)})")
    return _parquet_columns(path) if kind == ".parquet" else _csv_columns(path)


def _csv_columns(path: Path) -> tuple[list[str], list[Any]]:
    """Rows are counted from 1, the header not among them."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
            names = next(rows, [])
            paths, labels = _column_of(names, "path", path), _column_of(names, "label", path)
            found = [row for row in rows if row]
    except UnicodeDecodeError as error:
        raise DataError(f"images: {path} is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8") from error
    except csv.Error as error:
        raise DataError(f"images: {path} can't be read as CSV: {error}") from error
    for number, row in enumerate(found, 1):
        if len(row) != len(names):
            raise DataError(f"images: {path} row {number} has {len(row)} fields, and its header {len(names)}: {row!r}")
    return [row[paths] for row in found], [row[labels] for row in found]


def _parquet_columns(path: Path) -> tuple[list[str], list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        names = list(parquet.read_schema(path).names)
        wanted = [names[_column_of(names, column, path)] for column in ("path", "label")]
        table = parquet.read_table(path, columns=wanted)
    except pa.ArrowException as error:
        raise DataError(f"images: {path} can't be read as Parquet: {error}") from error
    paths = table.column(wanted[0]).to_pylist()
    for row, name in enumerate(paths, 1):
        if not isinstance(name, str):
            raise DataError(f"images: {path} row {row} has no path: {name!r}")
    return paths, table.column(wanted[1]).to_pylist()


def _column_of(names: Sequence[str], wanted: str, path: Path) -> int:
    if wanted not in names:
        near = did_you_mean(wanted, names) if names else "the file is empty"
        raise DataError(f"images: {path} needs the columns path and label; it has no {wanted!r}: {near}")
    return list(names).index(wanted)
