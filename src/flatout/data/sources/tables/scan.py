"""A table as a stream of record batches: finds its files and their format, and agrees on one type for each column."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from flatout.base.errors import DataError, UsageError, did_you_mean
from flatout.data.files.bad import Bad, OnBad
from flatout.data.files.places import PACKED_SUFFIXES, FilePlace, Written, find, open_plain
from flatout.data.sources.tables.arrow import Where
from flatout.data.sources.tables.columnar import ArrowPart, ParquetPart, RowFilter
from flatout.data.sources.tables.csv import CsvPart
from flatout.data.sources.tables.dialect import CsvOptions
from flatout.data.sources.tables.jsonl import JsonPart
from flatout.data.sources.tables.schema import Types, as_types, plain, told, wider

FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".txt": "csv", ".data": "csv",
    ".parquet": "parquet", ".pq": "parquet", ".parq": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".arrows": "arrow",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
}  # fmt: skip
_NAMES = ("csv", "tsv", "parquet", "arrow", "feather", "jsonl")
_IN_FOLDERS = (".csv", ".tsv", ".parquet", ".pq", ".arrow", ".feather", ".jsonl", ".ndjson")
SUFFIXES = tuple(kind + packed for kind in _IN_FOLDERS for packed in ("", *PACKED_SUFFIXES))
"""Files with these suffixes are the tables of a folder."""


@dataclass(frozen=True)
class ReadOptions:
    """How the files of a table are read.

    format       csv | tsv | parquet | arrow | feather | jsonl; by default found by the name of the file, then by its content
    columns      read only these, in this order; by default all
    text         columns read as text even if they hold numbers (postal codes, ids)
    delimiter    of CSV; by default found among , ; tab |
    names        the columns of CSV files without a header (header=False)
    skip_lines   number of lines to skip at the top of each file; `comment`: also skip lines at the top that start with this
    strip        True: trim spaces around each value; or the characters to trim, such as " ." where labels end in a dot
    na           values that mean "missing", besides the empty one (and, among numbers, NA, NaN, null and the like)
    encoding     of text files, utf-8 by default
    decimal      "," where 1,5 means one and a half
    on_bad       "error" stops at the first bad row; "skip" leaves bad rows out and counts them in `Scan.bad`
    """

    format: str | None = None
    columns: Sequence[str] | None = None
    text: Sequence[str] = ()
    delimiter: str | None = None
    header: bool = True
    names: Sequence[str] | None = None
    skip_lines: int = 0
    comment: str | None = None
    strip: bool | str = False
    na: Sequence[str] | None = None
    encoding: str | None = None
    decimal: str = "."
    on_bad: str = "error"

    def __post_init__(self) -> None:
        if self.format not in (None, *_NAMES):
            near = did_you_mean(str(self.format), _NAMES)
            raise UsageError(f"format: {self.format!r} is not one of {', '.join(_NAMES)}; {near}")

    def csv(self) -> CsvOptions:
        given = {field.name: getattr(self, field.name) for field in fields(CsvOptions)}
        given["names"] = None if self.names is None else tuple(self.names)
        given["na"] = tuple(self.na or ())
        if self.format == "tsv" and self.delimiter is None:
            given["delimiter"] = "\t"
        return CsvOptions(**given)


class TableFile(Protocol):
    """One file of a table, or one query."""

    name: str
    types: Types
    rows: int | None

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        """Record batches of these columns in storage order, each of its type or of one that can be cast to it."""

    def blocks(self) -> tuple[int, ...] | None:
        """The sizes of row groups or files; None if they are not known."""

    def fingerprint(self) -> str: ...


class RowChange(RowFilter, Protocol):
    """Changes batches as they are read: leaves rows out, adds columns."""

    def begin(self) -> None:
        """A pass over all rows begins."""

    @property
    def adds(self) -> Types: ...

    def needs(self, wanted: Sequence[str]) -> Sequence[str]:
        """The columns to read, so that `changed` can give those that are wanted."""

    def changed(self, batch: Any, where: Where, wanted: Sequence[str]) -> tuple[Any, Where]: ...

    def fingerprint(self) -> str: ...

    def note(self) -> str | None:
        """What the pass left out."""


class Scan:
    """The rows of a table as a stream of record batches. Every pass reads the files again, a few blocks at a time.

    columns      column -> pyarrow.DataType, in order. Types are plain: bool, int8..uint64, float32/64, string, date32,
                 timestamp, time, null (only missing values); no dictionaries, large strings or decimals.
                 Missing values are Arrow nulls (a float from Parquet or Arrow may also be NaN).
    rows         their number; None if it is not known before reading
    bad          the rows that on_bad=skip left out: count, examples, summary()
    as_written   columns that are text only because they were asked for as they are written in a CSV file
    """

    def __init__(
        self,
        parts: Sequence[TableFile],
        columns: Types,
        bad: Bad,
        as_written: Sequence[str] = (),
        change: RowChange | None = None,
    ) -> None:
        self.columns = columns if change is None else {**columns, **change.adds}
        self._stored, self._change = columns, change
        self.bad = bad
        self.as_written = tuple(as_written)
        counts = [part.rows for part in parts]
        self.rows: int | None = None if None in counts or change is not None else sum(count or 0 for count in counts)
        self._parts = tuple(parts)

    def batches(self, columns: Sequence[str] | None = None, rows_at_once: int = 65536) -> Iterator[tuple[Any, Where]]:
        """(pyarrow.RecordBatch, Where), each of at most `rows_at_once` rows, of one file.

        Every pass gives the same rows in the same order, whichever `columns` are read; `where.of(i)` is the place of row i.
        """
        if rows_at_once < 1:
            raise UsageError(f"rows_at_once is 1 or more, got {rows_at_once}")
        wanted = list(self.columns if columns is None else columns)
        for name in wanted:
            if name not in self.columns:
                raise DataError(f"the table has no column {name!r}; {did_you_mean(name, self.columns)}")
        read = wanted if self._change is None else self._change.needs(wanted)
        types = {name: self._stored[name] for name in read}
        if not types:
            raise UsageError("name one column or more to read")
        if self._change is not None:
            self._change.begin()
        for batch, where in self._typed(types, rows_at_once):
            if self._change is not None:
                batch, where = self._change.changed(batch, where, wanted)
            if batch.num_rows:
                yield batch, where

    def changed_by(self, change: RowChange) -> Scan:
        """The same files, with every batch changed as it is read."""
        parts = [part.filtered(change) if isinstance(part, ParquetPart) else part for part in self._parts]
        return Scan(parts, self._stored, self.bad, self.as_written, change)

    def _typed(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        for part in self._parts:
            for batch, where in part.batches(types, rows_at_once):
                if batch.num_rows:
                    same = dict(zip(batch.schema.names, batch.schema.types, strict=True)) == types
                    yield batch if same else as_types(batch, types, where.file), where

    def fingerprint(self) -> str:
        """A hash of the content of the files and of how they are read, in hex."""
        kinds = [(name, str(kind)) for name, kind in self.columns.items()]
        parts = [part.fingerprint() for part in self._parts]
        content = (kinds, parts, self.bad.policy.value, *(() if self._change is None else [self._change.fingerprint()]))
        return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()

    def left_out(self) -> str | None:
        """The rows that the last pass left out, and why."""
        return None if self._change is None else self._change.note()

    def blocks(self) -> tuple[int, ...] | None:
        """The sizes of row groups or files, in order; None if they are not known."""
        each = [part.blocks() for part in self._parts]
        return None if None in each else tuple(rows for blocks in each for rows in blocks or () if rows)


def scan(
    paths: Written,
    *,
    label: str | None = None,
    base_folder: str | os.PathLike[str] | None = None,
    keep_bytes: int = 0,
    as_written: Sequence[str] = (),
    **options: Any,
) -> Scan:
    """The table in `paths`: a file, a glob, a folder, an fsspec URL, or a list of them. `options` are those of ReadOptions.

    `label` is a column that has to exist; relative paths start at `base_folder`. Files that can't be read are an error here,
    not in the middle of a run: CSV and JSON files are read once for this. A CSV file whose columns take up to `keep_bytes`
    is not read a second time. `as_written`: columns whose types are not guessed if the files are CSV.
    """
    return scan_files(find(paths, base_folder, "table", SUFFIXES), ReadOptions(**options), label, keep_bytes, as_written)


def scan_files(
    places: Sequence[FilePlace],
    options: ReadOptions,
    label: str | None = None,
    keep_bytes: int = 0,
    as_written: Sequence[str] = (),
) -> Scan:
    bad = Bad(OnBad(options.on_bad))
    kind = _one_format(places, options.format)
    csv_options = options.csv()
    parts: Sequence[TableFile]
    if kind == "csv":
        each = [CsvPart(place, csv_options, bad, keep_bytes // len(places)) for place in places]
        options = replace(options, text=[*options.text, *as_written])
        parts, types = _survey_csv(each, options.columns, options.text)
    elif csv_options != CsvOptions():
        raise UsageError(f"{', '.join(vars(CsvOptions()))} are for CSV; {places[0].name} is {kind}")
    else:
        as_written = ()
        parts = [_part(kind, place, bad) for place in places]
        types = _agreed(parts, options.columns)
    return _checked(Scan(parts, _as_text(types, options.text), bad, as_written), label, [place.name for place in places])


def _part(kind: str, place: FilePlace, bad: Bad) -> TableFile:
    if kind == "jsonl":
        return JsonPart(place, bad)
    return ParquetPart(place) if kind == "parquet" else ArrowPart(place)


def _survey_csv(
    parts: Sequence[CsvPart], columns: Sequence[str] | None, text: Sequence[str]
) -> tuple[Sequence[TableFile], Types]:
    """One type for each column, as if all files were one."""
    import pyarrow as pa

    first = parts[0]
    names = list(first.types) if columns is None else list(columns)
    for part in parts:
        _check_columns(names, part, strict=columns is None, like=first.name)
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
        raise DataError(f"{where} has column names and no rows" if left_out is None else f"{where} has no good row: {left_out}")
    return scan


def _one_format(places: Sequence[FilePlace], asked: str | None) -> str:
    if asked is not None:
        return {"tsv": "csv", "feather": "arrow"}.get(asked, asked)
    formats = {place.name: format_of(place) for place in places}
    first = formats[places[0].name]
    other = next((name for name, kind in formats.items() if kind != first), None)
    if other is not None:
        raise DataError(f"{places[0].name} is {first} and {other} is {formats[other]}: the files of a table have one format")
    return first


def format_of(place: FilePlace) -> str:
    """csv, parquet, arrow or jsonl: by the name of the file; if the name does not say it, by the first bytes."""
    name = place.name.lower()
    for packed in PACKED_SUFFIXES:
        name = name.removesuffix(packed)
    by_name = next((kind for suffix, kind in FORMATS.items() if name.endswith(suffix)), None)
    if by_name in ("parquet", "arrow"):
        return by_name  # their readers report a file that is something else
    with open_plain(place) as file:
        start = file.read(64)
    by_content = next((kind for mark, kind in ((b"PAR1", "parquet"), (b"ARROW1", "arrow")) if start.startswith(mark)), None)
    if by_name is not None and by_content is not None:
        raise DataError(
            f"{place.name} has the content of a {by_content} file, not of {by_name}: set format: {by_content}, or rename it"
        )
    return by_content or by_name or ("jsonl" if start.lstrip().startswith(b"{") else "csv")


def _agreed(parts: Sequence[TableFile], wanted: Sequence[str] | None) -> Types:
    """The columns of all files, with types wide enough for each file."""
    first = parts[0]
    names = list(first.types) if wanted is None else list(wanted)
    for part in parts:
        _check_columns(names, part, strict=wanted is None, like=first.name)
    types: Types = {}
    for name in names:
        kind, since = plain(first.types[name]), first.name
        for part in parts[1:]:
            other = plain(part.types[name])
            both = wider(kind, other)
            if both is None:
                raise DataError(
                    f"column {name!r} is {told(kind)} in {since} and {told(other)} in {part.name}: "
                    "write the files with one type, or list the column under categorical"
                )
            if both != kind:
                kind, since = both, part.name
        types[name] = kind
    return types


def _check_columns(names: Sequence[str], part: TableFile, strict: bool, like: str) -> None:
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
            f"{part.name} has {columns_of(more)}, which {like} has not: all files of a table need the same columns, "
            "or name the columns to read"
        )


def check_column(name: str, types: Mapping[str, Any], what: str) -> None:
    if name not in types:
        raise DataError(f"{what}: the table has no column {name!r}; {did_you_mean(str(name), map(str, types))}")


def columns_of(names: Sequence[str]) -> str:
    return f"{'column' if len(names) == 1 else 'columns'} {listed(names, 5)}"


def listed(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
