"""Lists of images: CSV, TSV or Parquet with a path and a label a row; other columns are ignored."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError, did_you_mean
from flatout.data.files.allowance import Allowance
from flatout.data.files.damage import reading
from flatout.data.files.lines import LineGuard
from flatout.data.files.places import LocalFile, open_plain
from flatout.data.sources.tables.columnar import ParquetPart

LISTS = (".csv", ".tsv", ".parquet")
_ROWS_AT_ONCE = 65536


def read_list(path: Path) -> tuple[list[str], list[Any]]:
    """The paths as written, and the labels."""
    kind = path.suffix.lower()
    if kind not in LISTS:
        raise DataError(f"images: {path} is neither a folder nor a list of images ({', '.join(LISTS)})")
    return _parquet_columns(path) if kind == ".parquet" else _csv_columns(path)


def _csv_columns(path: Path) -> tuple[list[str], list[Any]]:
    """Rows are counted from 1, without the header."""
    try:
        with open_plain(LocalFile(path)) as stream:
            guarded = io.BufferedReader(LineGuard(stream, f"images: {path}"))
            file = io.TextIOWrapper(guarded, encoding="utf-8-sig", newline="")
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
    try:
        part = ParquetPart(LocalFile(path))
        names = list(part.types)
        wanted = {names[_column_of(names, column, path)]: None for column in ("path", "label")}
        room = Allowance()
        paths: list[Any] = []
        labels: list[Any] = []
        for batch, _ in part.batches(wanted, _ROWS_AT_ONCE):
            room.take(4 * batch.nbytes, str(path))
            with reading(str(path), "as Parquet"):
                paths += batch.column(0).to_pylist()
                labels += batch.column(1).to_pylist()
    except DataError as error:
        raise DataError(str(error) if str(error).startswith("images: ") else f"images: {error}") from error
    for row, name in enumerate(paths, 1):
        if not isinstance(name, str):
            raise DataError(f"images: {path} row {row} has no path: {name!r}")
    return paths, labels


def _column_of(names: Sequence[str], wanted: str, path: Path) -> int:
    if wanted not in names:
        near = did_you_mean(wanted, names) if names else "the file is empty"
        raise DataError(f"images: {path} needs the columns path and label; it has no {wanted!r}: {near}")
    return list(names).index(wanted)
