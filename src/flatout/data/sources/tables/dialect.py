"""How a CSV file is written: encoding, delimiter, header; and on which line each of its rows stands."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any

from flatout.base.errors import DataError, UsageError
from flatout.data.files.places import FilePlace
from flatout.data.files.unpacking import LONGEST_LINE_BYTES, LineGuard, read_line
from flatout.data.sources.tables.utf8 import not_utf8, utf8

_TABS = re.compile(r"\.(tsv|tab)(\.\w+)?$")
_DELIMITERS = (",", ";", "\t", "|")
_SAMPLE_BYTES = 256 << 10
_SAMPLE_ROWS = 500
_MOST_COLUMNS = 1 << 18


@dataclass(frozen=True)
class CsvOptions:
    """What the user said about CSV files; None and the empty mean: find out."""

    delimiter: str | None = None
    header: bool = True
    names: tuple[str, ...] | None = None
    skip_lines: int = 0
    comment: str | None = None
    strip: bool | str = False
    na: tuple[str, ...] = ()
    encoding: str | None = None
    decimal: str = "."

    def __post_init__(self) -> None:
        if self.delimiter is not None and len(self.delimiter.encode()) != 1:
            raise UsageError(f"delimiter is one character, such as ';' or a tab, got {self.delimiter!r}")
        if self.header and self.names is not None:
            raise UsageError(
                "names are for files without a header: set header: false too (and skip_lines: 1 to replace a header)"
            )
        if self.decimal not in (".", ","):
            raise UsageError(f"decimal is '.' or ',', got {self.decimal!r}")
        if self.skip_lines < 0:
            raise UsageError(f"skip_lines is a number of lines, 0 or more, got {self.skip_lines}")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise UsageError(f"encoding: {self.encoding!r} is not known; utf-8, latin-1, cp1252 and utf-16 are") from None

    @property
    def trimmed(self) -> str:
        """The characters to trim around each value."""
        return " \t" if self.strip is True else self.strip or ""


@dataclass(frozen=True)
class CsvHeader:
    """What stands before the first row."""

    names: tuple[str, ...]
    delimiter: str
    bytes: int
    """Where the first row starts, in the file as UTF-8."""
    lines: int
    """How many lines stand before the first row."""

    @staticmethod
    def read(place: FilePlace, options: CsvOptions) -> CsvHeader:
        with utf8(place, options.encoding) as stream:
            head, lines = _skipped(stream, options, place.name)
            sample = stream.read(_SAMPLE_BYTES) + read_line(stream, place.name)  # whole lines
        if not sample.strip():
            raise DataError(f"{place.name} is empty" + (" below the lines to skip" if lines else ""))
        if b"\0" in sample:
            hint = "if it is text in another encoding, set encoding: utf-16" if options.encoding is None else "check encoding"
            raise DataError(f"{place.name} is not a CSV file: it has zero bytes (byte {head + sample.index(0)}); {hint}")
        _check_width(sample, place.name)
        text = sample.decode("utf-8", "replace")
        delimiter = options.delimiter or ("\t" if _TABS.search(place.name.lower()) else _sniffed(text))
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        with _long_values():
            first = next((record for record in reader if record), [])
        if not options.header:
            return CsvHeader(_given_names(place, options, first), delimiter, head, lines)
        names = _header_names(place, options, first)
        taken = "".join(line for line, _ in zip(io.StringIO(text, newline=""), range(reader.line_num), strict=False))
        if not sample.startswith(taken.encode()):  # what can't be decoded was replaced
            raise DataError(not_utf8(place))
        return CsvHeader(names, delimiter, head + len(taken.encode()), lines + reader.line_num)


def _skipped(stream: io.BufferedReader, options: CsvOptions, name: str) -> tuple[int, int]:
    """Past the lines to leave out at the top: their bytes and their number."""
    taken = lines = 0
    for _ in range(options.skip_lines):
        taken, lines = taken + len(read_line(stream, name)), lines + 1
    comment = (options.comment or "").encode()
    while comment and stream.peek(len(comment))[: len(comment)] == comment:
        taken, lines = taken + len(read_line(stream, name)), lines + 1
    return taken, lines


def _check_width(sample: bytes, name: str) -> None:
    """Before a first line of nothing but delimiters becomes a million names."""
    first = sample[: sample.find(b"\n")] if b"\n" in sample else sample
    most = max(first.count(delimiter.encode()) for delimiter in _DELIMITERS)
    if most >= _MOST_COLUMNS:
        raise DataError(
            f"{name}: its first line has {most + 1:,} columns, and a table may have {_MOST_COLUMNS:,}: is it a table?"
        )


def _header_names(place: FilePlace, options: CsvOptions, first: list[str]) -> tuple[str, ...]:
    if all(_is_number(cell) for cell in first):
        raise DataError(
            f"{place.name}: the first line looks like a row, not like names of columns ({', '.join(first[:5])}): "
            "set header: false, and names"
        )
    names = [name.strip().strip(options.trimmed) for name in first]
    return tuple(name or f"column_{place}" for place, name in enumerate(names, 1))


def _given_names(place: FilePlace, options: CsvOptions, first: list[str]) -> tuple[str, ...]:
    if options.names is None:
        return tuple(f"column_{place}" for place in range(1, len(first) + 1))
    if len(options.names) != len(first):
        raise DataError(f"{place.name} has {len(first)} columns, and names has {len(options.names)}")
    return options.names


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _sniffed(text: str) -> str:
    """The delimiter that cuts the most rows into as many cells as the first one has; of two such, the one that cuts more."""
    best, best_score = ",", (0.0, 1)
    for delimiter in _DELIMITERS:
        records = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        with _long_values():
            widths = [len(record) for record in islice(records, _SAMPLE_ROWS) if record]
        score = (widths.count(widths[0]) / len(widths), widths[0]) if widths else (0.0, 1)
        if widths and widths[0] > 1 and score > best_score:
            best, best_score = delimiter, score
    return best


@contextmanager
def _long_values() -> Iterator[None]:
    """Documents in a column are longer than the 128 kB that the csv module allows a value."""
    usual = csv.field_size_limit(2 * LONGEST_LINE_BYTES)
    try:
        yield
    finally:
        csv.field_size_limit(usual)


class Lines:
    """The line on which a row starts.

    Values may hold line breaks and lines may be blank: then the file is read again, once for all rows asked for in order.
    """

    def __init__(self, place: FilePlace, options: CsvOptions, head: CsvHeader) -> None:
        self._place, self._options, self._head = place, options, head
        self._starts: Iterator[int] = iter(())
        self._next = 0
        self._last: tuple[int, int] | None = None
        self._a_row_a_line: bool | None = None
        self._lock = Lock()

    def of(self, row: int) -> int:
        with self._lock, _long_values():
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

    def of_open_quote(self) -> int | None:
        """The line of the row whose quote is never closed, so that it takes in the rest of the file; None if all are."""
        before = 0
        with self._records(strict=True) as records, _long_values():
            try:
                for _ in records:
                    before = records.line_num
            except csv.Error as error:
                return self._head.lines + 1 + before if "end of data" in str(error) else None
        return None

    def _is_plain(self) -> bool:
        """Without a quote and a blank line, every line is a row: no need to look at each."""
        before = b"\n"
        with utf8(self._place, self._options.encoding) as stream:
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
            except csv.Error:  # a value without end: rows after it have no line of their own
                return

    @contextmanager
    def _records(self, strict: bool = False) -> Iterator[Any]:
        with utf8(self._place, self._options.encoding) as stream:
            stream.read(self._head.bytes)
            text = io.TextIOWrapper(io.BufferedReader(LineGuard(stream, self._place.name)), "utf-8", "replace", newline="")
            yield csv.reader(text, delimiter=self._head.delimiter, strict=strict)
