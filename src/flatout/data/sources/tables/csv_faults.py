"""Messages about bad rows of a CSV file, and the line of a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Lock
from typing import Any

from flatout.base.errors import DataError
from flatout.data.files.lines import LineGuard
from flatout.data.files.places import FilePlace
from flatout.data.sources.tables.dialect import CsvHeader, CsvOptions, long_values, open_utf8
from flatout.data.sources.tables.schema import told
from flatout.data.sources.tables.utf8 import not_utf8


class CsvFaults:
    """The line on which a row starts.

    Where values hold line breaks, or lines are blank, the file is read again: once, if rows are asked for in order.
    """

    def __init__(self, place: FilePlace, options: CsvOptions, head: CsvHeader) -> None:
        self._place, self._options, self._head = place, options, head
        self._starts: Iterator[int] = iter(())
        self._next = 0
        self._last: tuple[int, int] | None = None
        self._a_row_a_line: bool | None = None
        self._lock = Lock()

    def line_of(self, row: int) -> int:
        with self._lock, long_values():
            if self._a_row_a_line is None:
                self._a_row_a_line = self._is_plain()
            if self._a_row_a_line:
                return self._head.lines + 1 + row
            if self._last is None or row < self._last[0]:
                self._starts, self._next = self._walk(), 0
            if self._last is None or row != self._last[0]:
                self._last = row, next(islice(self._starts, row - self._next, None), self._head.lines + 1 + row)
                self._next = row + 1
            return self._last[1]

    def check_quotes(self) -> None:
        """DataError for a quote that is never closed: the rest of the file would pass for one bad row."""
        line = self._line_of_open_quote()
        if line is not None:
            raise DataError(f"{self._place.name}, line {line}: a quote is never closed, so the rest of the file is one value")

    def _line_of_open_quote(self) -> int | None:
        before = 0
        with self._records(strict=True) as records, long_values():
            try:
                for _ in records:
                    before = records.line_num
            except csv.Error as error:
                return self._head.lines + 1 + before if "end of data" in str(error) else None
        return None

    def _is_plain(self) -> bool:
        """Whether every line is a row: no quotes, no blank lines."""
        before = b"\n"
        with open_utf8(self._place, self._options.encoding) as stream:
            stream.read(self._head.bytes)
            while content := stream.read(1 << 20):
                content = before + content
                if b'"' in content or b"\n\n" in content or b"\r" in content:
                    return False
                before = content[-1:]
        return True

    def _walk(self) -> Iterator[int]:
        before = 0
        with self._records() as records:
            try:
                for record in records:
                    if record:
                        yield self._head.lines + 1 + before
                    before = records.line_num
            except csv.Error:  # a quote that is never closed: the rest of the file is one value
                return

    @contextmanager
    def _records(self, strict: bool = False) -> Iterator[Any]:
        with open_utf8(self._place, self._options.encoding) as stream:
            stream.read(self._head.bytes)
            text = io.TextIOWrapper(io.BufferedReader(LineGuard(stream, self._place.name)), "utf-8", "replace", newline="")
            yield csv.reader(text, delimiter=self._head.delimiter, strict=strict)


def misfit(name: str, kind: Any, cell: str) -> str:
    return (
        f"column {name!r} is {told(kind)}, this row has {_shortened(cell)}: "
        "if the column is text, list it under categorical; if this is a missing value, list it under na"
    )


def ragged_row(row: Any) -> str:
    return f"expected {row.expected_columns} values, got {row.actual_columns}: {_shortened(row.text)}"


def comma_numbers(name: str, example: str) -> str:
    return (
        f"column {name!r} has numbers with commas, such as {example!r}: if the comma is the decimal point, set decimal: ','; "
        "if it separates thousands, remove it; to read the column as text, list it under categorical"
    )


def unreadable_csv(place: FilePlace, error: str, block_bytes: int) -> str:
    """What Arrow's error means."""
    if "UTF8" in error:
        return not_utf8(place)
    if "straddl" in error:
        return f"{place.name}: a row is longer than {block_bytes >> 20} MB: a quote is never closed, or the file has no lines"
    return f"{place.name} can't be read as CSV: {error}"


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
