"""CSV files. Every cell is read as text first, so that what does not fit can be named by file, line and column."""

from __future__ import annotations

import codecs
import hashlib
import io
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.files.bad import Bad
from flatout.data.files.places import FilePlace
from flatout.data.sources.tables.cells import converted, fitting, with_commas
from flatout.data.sources.tables.dialect import CsvHeader, CsvOptions, Lines
from flatout.data.sources.tables.schema import Types, Where, check_distinct, told
from flatout.data.sources.tables.utf8 import not_utf8, utf8

_BLOCK_BYTES = 8 << 20
_DECIMAL_COMMA = r"^(\s*[+-]?\d*),(\d+([eE][+-]?\d+)?\s*)$"


class CsvPart:
    """One CSV file. `survey` reads it through once: what its columns hold, how many rows it has, which of them are bad."""

    def __init__(self, place: FilePlace, options: CsvOptions, bad: Bad) -> None:
        self.name = place.name
        self.rows: int | None = None
        self._place, self._options, self._bad = place, options, bad
        self._head = CsvHeader.read(place, options)
        check_distinct(self._head.names, self.name)
        self.types: Types = dict.fromkeys(self._head.names)
        self._lines = Lines(place, options, self._head)
        self._told = 0
        self._suspects: set[str] = set()  # columns with bad cells, which drop their rows whichever columns are read

    def survey(self, types: Types) -> Types:
        """The types of these columns, wide enough for this file too. Bad rows are told to `bad`."""
        import pyarrow as pa

        types = dict(types)
        rows = 0
        for batch, where in self._texts(list(types), tell=True):
            kept = np.ones(batch.num_rows, bool)
            for cells, (name, kind) in zip(batch.columns, types.items(), strict=True):
                _, bad = converted(cells, kind)
                if bad is not None or pa.types.is_null(kind):
                    types[name] = fitting(cells, kind)
                    self._check_commas(name, types[name], cells)
                    _, bad = converted(cells, types[name])
                if bad is not None:
                    self._suspects.add(name)
                    for row in np.flatnonzero(bad & kept):
                        self._bad.found(where.of(int(row)), _misfit(name, types[name], cells[int(row)].as_py()))
                    kept &= ~bad
            rows += int(kept.sum())
        self.rows = rows
        return types

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        import pyarrow as pa

        rows = 0
        kinds = {**types, **{name: self.types[name] for name in sorted(self._suspects - set(types))}}
        for batch, where in self._texts(list(kinds), tell=False):
            kept = np.ones(batch.num_rows, bool)
            columns = {}
            for cells, (name, kind) in zip(batch.columns, kinds.items(), strict=True):
                columns[name], bad = converted(cells, kind)
                if bad is not None:
                    kept &= ~bad
            values = pa.RecordBatch.from_arrays([columns[name] for name in types], names=list(types))
            if not kept.all():
                values, where = values.filter(pa.array(kept)), where.only(kept)
            rows += values.num_rows
            for start in range(0, values.num_rows, rows_at_once):
                yield values.slice(start, rows_at_once), where.part(start, start + rows_at_once)
        if rows != self.rows:
            raise DataError(f"{self.name} had {self.rows} rows at first and now has {rows}: it was changed meanwhile")

    def blocks(self) -> tuple[int, ...] | None:
        return None if self.rows is None else (self.rows,)

    def fingerprint(self) -> str:
        return hashlib.blake2b(repr((self._place.fingerprint(), asdict(self._options))).encode(), digest_size=16).hexdigest()

    def _texts(self, columns: Sequence[str], tell: bool) -> Iterator[tuple[Any, Where]]:
        """Batches of cells as strings, null where missing. Ragged rows are left out, and told to `bad` if `tell`."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        ragged: list[Any] = []

        def leave_out(row: Any) -> str:
            ragged.append(row)
            return "skip"

        with utf8(self._place, self._options.encoding) as stream:
            stream.read(self._head.bytes)
            read = arrow_csv.ReadOptions(column_names=self._head.names, block_size=_BLOCK_BYTES, use_threads=False)
            parse = arrow_csv.ParseOptions(
                delimiter=self._head.delimiter, newlines_in_values=True, invalid_row_handler=leave_out
            )
            convert = arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                include_columns=list(columns),
                strings_can_be_null=True,
                null_values=["", *self._options.na],
            )
            if not stream.peek(1):
                return
            watched = _Watched(stream, self._place)
            try:
                with arrow_csv.open_csv(pa.PythonFile(watched, "r"), read, parse, convert) as reader:
                    row = 0
                    for batch in reader:
                        rows, row = _numbered(batch.num_rows, row, ragged)
                        if tell:
                            self._tell_ragged(ragged, row)
                        yield self._tidied(batch), Where(self.name, 0, rows, self._lines.of)
                if tell:
                    self._check_quotes(watched.quotes)
                    self._tell_ragged(ragged, None)
            except pa.ArrowException as error:
                raise DataError(self._cause(str(error))) from error

    def _tell_ragged(self, ragged: list[Any], before: int | None) -> None:
        """Once each, in order."""
        while len(ragged) > self._told and (before is None or ragged[self._told].number <= before):
            row = ragged[self._told]
            self._told += 1
            self._bad.found(
                f"{self.name}, line {self._lines.of(row.number - 1)}",
                f"expected {row.expected_columns} values, got {row.actual_columns}: {_shortened(row.text)}",
            )

    def _check_quotes(self, quotes: int) -> None:
        """A quote that is never closed takes in the rest of the file, which must not pass for one bad row."""
        line = self._lines.of_open_quote() if quotes % 2 else None
        if line is not None:
            raise DataError(
                f"{self.name}, line {line}: a quote is opened and never closed, so the rest of the file is one value"
            )

    def _check_commas(self, name: str, kind: Any, cells: Any) -> None:
        import pyarrow as pa

        example = with_commas(cells) if pa.types.is_string(kind) else None
        if example is not None:
            raise DataError(
                f"{self.name}: column {name!r} holds numbers with commas, such as {example!r}: set decimal: ',' if that is the "
                "decimal point, write them without if it parts thousands, or declare the column under categorical to keep it so"
            )

    def _tidied(self, batch: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = batch.columns
        if self._options.trimmed:
            missing = pa.array(["", *self._options.na])
            trimmed = [pc.utf8_trim(column, characters=self._options.trimmed) for column in columns]
            columns = [pc.if_else(pc.is_in(cells, value_set=missing), pa.scalar(None, pa.string()), cells) for cells in trimmed]
        if self._options.decimal != ".":
            columns = [pc.replace_substring_regex(column, _DECIMAL_COMMA, r"\1.\2") for column in columns]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _cause(self, error: str) -> str:
        if "UTF8" in error:
            return not_utf8(self._place)
        if "straddl" in error:
            size = f"{_BLOCK_BYTES >> 20} MB"
            return f"{self.name}: a row goes on for more than {size}: some quote is opened and never closed, or it has no lines"
        return f"{self.name} can't be read as CSV: {error}"


class _Watched:
    """A stream for Arrow to read from, and how many quotes came by. What is not UTF-8 does not get through.

    Arrow looks at the text of the columns that are read; of a row that it leaves out, it fails to tell in mid-parse.
    """

    closed = False

    def __init__(self, stream: io.BufferedReader, place: FilePlace) -> None:
        self._stream, self._place = stream, place
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.quotes = 0

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(size)
        self.quotes += content.count(b'"')
        if not content.isascii() or self._decoder.getstate()[0]:
            try:
                self._decoder.decode(content)
            except UnicodeDecodeError as error:
                raise DataError(not_utf8(self._place)) from error
        return content

    def close(self) -> None:
        """The stream is closed by whoever opened it."""


def _numbered(count: int, start: int, ragged: Sequence[Any]) -> tuple[Any, int]:
    """Which rows of the file the next `count` good ones are, from `start` on, and where the ones after them start."""
    numbers = [row.number - 1 for row in ragged[bisect_left(ragged, start, key=lambda row: row.number - 1) :]]
    stop = start + count
    inside = 0
    while inside < len(numbers) and numbers[inside] < stop:
        inside, stop = inside + 1, stop + 1
    rows = np.arange(start, stop)
    return (np.delete(rows, np.array(numbers[:inside], np.int64) - start) if inside else rows), stop


def _misfit(name: str, kind: Any, cell: str) -> str:
    return (
        f"column {name!r} is {told(kind)}, and here it is {_shortened(cell)}: "
        "if the column is text, declare it under categorical; if this means a missing value, list it under na"
    )


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
