"""A table as a stream: record batches over all its files, in a fixed order, with one type a column."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from flatout.base.errors import DataError, UsageError, did_you_mean
from flatout.data.files.bad import Bad
from flatout.data.files.places import FilePlace, Written, find
from flatout.data.files.unpacking import SUFFIXES as PACKED
from flatout.data.files.unpacking import open_plain
from flatout.data.sources.tables.columnar import ArrowPart, ParquetPart
from flatout.data.sources.tables.csv import CsvPart
from flatout.data.sources.tables.dialect import CsvOptions
from flatout.data.sources.tables.jsonl import JsonPart
from flatout.data.sources.tables.schema import TableFile, Types, Where, agreed, as_types, check_columns

__all__ = ["Scan", "Where", "scan"]

_FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".txt": "csv", ".data": "csv",
    ".parquet": "parquet", ".pq": "parquet", ".parq": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".arrows": "arrow",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
}  # fmt: skip
_NAMES = ("csv", "tsv", "parquet", "arrow", "feather", "jsonl")
_IN_FOLDERS = (".csv", ".tsv", ".parquet", ".pq", ".arrow", ".feather", ".jsonl", ".ndjson")
SUFFIXES = tuple(kind + packed for kind in _IN_FOLDERS for packed in ("", *PACKED))
"""Ends of the names that are tables when a folder is given."""


class Scan:
    """Rows of a table, read again each time they are asked for; never more than a few blocks of them are in memory.

    columns      column -> pyarrow.DataType, in order. Types are plain: bool, int8..uint64, float32/64, string, date32,
                 timestamp, time, null (nothing but missing values); dictionaries, large strings and decimals are gone.
                 Missing values are Arrow nulls (a float from Parquet or Arrow may be NaN as well).
    rows         how many, None where that is not known before reading
    bad          what on_bad=skip left out: count, examples, summary()
    """

    def __init__(self, parts: Sequence[TableFile], columns: Types, bad: Bad) -> None:
        self.columns = columns
        self.bad = bad
        counts = [part.rows for part in parts]
        self.rows: int | None = None if None in counts else sum(count or 0 for count in counts)
        self._parts = tuple(parts)

    def batches(self, columns: Sequence[str] | None = None, rows_at_once: int = 65536) -> Iterator[tuple[Any, Where]]:
        """(pyarrow.RecordBatch, Where), each of `rows_at_once` rows or fewer, of one file.

        Every pass gives the same rows in the same order, whichever `columns` are asked for; `where.of(i)` names row i.
        """
        if rows_at_once < 1:
            raise UsageError(f"rows_at_once is 1 or more, got {rows_at_once}")
        types = dict(self.columns)
        if columns is not None:
            for name in columns:
                if name not in types:
                    raise DataError(f"the table has no column {name!r}; {did_you_mean(name, types)}")
            types = {name: types[name] for name in columns}
        if not types:
            raise UsageError("name one column or more to read")
        for part in self._parts:
            for batch, where in part.batches(types, rows_at_once):
                if batch.num_rows:
                    yield as_types(batch, types, where), where

    def fingerprint(self) -> str:
        """A hash of the files' content and of what decides how they are read, in hex."""
        kinds = [(name, str(kind)) for name, kind in self.columns.items()]
        parts = [part.fingerprint() for part in self._parts]
        return hashlib.blake2b(repr((kinds, parts, self.bad.policy)).encode(), digest_size=16).hexdigest()

    def blocks(self) -> tuple[int, ...] | None:
        """Rows of each stretch that is stored together (row groups, files), in order; None where that is not known."""
        each = [part.blocks() for part in self._parts]
        return None if None in each else tuple(rows for blocks in each for rows in blocks or () if rows)


def scan(
    paths: Written,
    *,
    format: str | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    text: Sequence[str] = (),
    delimiter: str | None = None,
    header: bool = True,
    names: Sequence[str] | None = None,
    skip_lines: int = 0,
    comment: str | None = None,
    strip: bool | str = False,
    na: Sequence[str] | None = None,
    encoding: str | None = None,
    decimal: str = ".",
    on_bad: str = "error",
    base_folder: str | os.PathLike[str] | None = None,
) -> Scan:
    """Finds the files and what their columns hold; CSV and JSON are read through once for that.

    Wrong files are refused here, not in the middle of a run.

    paths        a file, a glob, a folder, an fsspec URL, or a list of them
    format       csv | tsv | parquet | arrow | feather | jsonl; by default what the names say, then what the content says
    label        a column that has to be there
    columns      only these, in this order; by default all
    text         columns read as text even if they hold numbers (postal codes, ids)
    delimiter    of CSV; by default found among , ; tab |
    names        the columns of CSV files without a header (header=False)
    skip_lines   how many lines at the top of each file to leave out; `comment`: those at the top that start with this
    strip        True: spaces around each value are trimmed; or the characters to trim, such as " ." where labels end in a dot
    na           values that mean "missing", besides the empty one (and, among numbers, NA, NaN, null and the like)
    encoding     of text files, utf-8 by default
    decimal      "," where 1,5 means one and a half
    on_bad       "error" names the first bad row; "skip" leaves bad rows out and counts them in `.bad`
    base_folder  where relative paths start
    """
    if format not in (None, *_NAMES):
        raise UsageError(f"format: {format!r} is not one of {', '.join(_NAMES)}; {did_you_mean(str(format), _NAMES)}")
    bad = Bad(on_bad)
    places = find(paths, base_folder, "table", SUFFIXES)
    kind = _one_format(places, format)
    options = CsvOptions(
        "\t" if format == "tsv" and delimiter is None else delimiter,
        header,
        None if names is None else tuple(names),
        skip_lines,
        comment,
        strip,
        tuple(na or ()),
        encoding,
        decimal,
    )
    if kind != "csv" and options != CsvOptions():
        raise UsageError(f"{', '.join(vars(CsvOptions()))} are for CSV; {places[0].name} is {kind}")
    parts: Sequence[TableFile]
    if kind == "csv":
        parts, types = _survey_csv([CsvPart(place, options, bad) for place in places], columns, text)
    else:
        parts = [_part(kind, place, bad) for place in places]
        types = agreed(parts, columns)
    return _checked(Scan(parts, _as_text(types, text), bad), label, [place.name for place in places])


def _part(kind: str, place: FilePlace, bad: Bad) -> TableFile:
    if kind == "jsonl":
        return JsonPart(place, bad)
    return ParquetPart(place) if kind == "parquet" else ArrowPart(place)


def _survey_csv(
    parts: Sequence[CsvPart], columns: Sequence[str] | None, text: Sequence[str]
) -> tuple[Sequence[TableFile], Types]:
    """All files together have one type a column, as if they were one file."""
    import pyarrow as pa

    first = parts[0]
    names = list(first.types) if columns is None else list(columns)
    for part in parts:
        check_columns(names, part, strict=columns is None, like=first.name)
    types: Types = {name: pa.string() if name in text else pa.null() for name in names}
    for part in parts:
        types = part.survey(types)
    for part in parts:
        part.types = {name: types.get(name) for name in part.types}
    return parts, types


def _as_text(types: Types, text: Sequence[str]) -> Types:
    import pyarrow as pa

    for name in text:
        if name not in types:
            raise DataError(f"text: the table has no column {name!r}; {did_you_mean(name, types)}")
    return {name: pa.string() if name in text else kind for name, kind in types.items()}


def _checked(scan: Scan, label: str | None, files: Sequence[str]) -> Scan:
    where = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    if label is not None and label not in scan.columns:
        raise DataError(f"{where} has no column {label!r} for the label; {did_you_mean(label, scan.columns)}")
    if scan.rows == 0:
        left_out = scan.bad.summary()
        raise DataError(
            f"{where} has names of columns and no rows" if left_out is None else f"{where} has no good row: {left_out}"
        )
    return scan


def _one_format(places: Sequence[FilePlace], asked: str | None) -> str:
    if asked is not None:
        return {"tsv": "csv", "feather": "arrow"}.get(asked, asked)
    formats = {place.name: _format_of(place) for place in places}
    first = formats[places[0].name]
    other = next((name for name, kind in formats.items() if kind != first), None)
    if other is not None:
        raise DataError(f"{places[0].name} is {first} and {other} is {formats[other]}: the files of a table have one format")
    return first


def _format_of(place: FilePlace) -> str:
    """By its name; by its first bytes if the name says nothing."""
    name = place.name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    by_name = next((kind for suffix, kind in _FORMATS.items() if name.endswith(suffix)), None)
    if by_name in ("parquet", "arrow"):
        return by_name  # their readers say what is wrong with a file that is something else
    with open_plain(place) as file:
        start = file.read(64)
    by_content = next((kind for mark, kind in ((b"PAR1", "parquet"), (b"ARROW1", "arrow")) if start.startswith(mark)), None)
    if by_name is not None and by_content is not None:
        raise DataError(
            f"{place.name} is a {by_content} file by its content, not {by_name}: set format: {by_content}, or rename it"
        )
    return by_content or by_name or ("jsonl" if start.lstrip().startswith(b"{") else "csv")
