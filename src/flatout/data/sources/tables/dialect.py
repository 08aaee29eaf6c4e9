"""How a CSV file is written: encoding, delimiter, header. The user says it, or the first lines of the file show it."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from flatout.base.errors import DataError, UsageError
from flatout.data.files.lines import LONGEST_LINE_BYTES, read_line
from flatout.data.files.places import FilePlace, open_plain
from flatout.data.sources.tables.schema import check_distinct
from flatout.data.sources.tables.utf8 import Recoded, not_utf8

_TABS = re.compile(r"\.(tsv|tab)(\.\w+)?$")
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_COMMENTS = "#|%"
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_SAMPLE_BYTES = 256 << 10
_SAMPLE_ROWS = 500
_MOST_COLUMNS = 1 << 18
NO_NUMBER = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL", "NaN", "None",
    "n/a", "nan", "null",
)  # fmt: skip
"""Ways to write a missing number. In a column of text they are text: "NA" is also Namibia."""


@dataclass(frozen=True)
class CsvOptions:
    """What the user says about CSV files. None or empty: found in the file."""

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
                raise UsageError(f"unknown encoding {self.encoding!r}; known are utf-8, latin-1, cp1252, utf-16") from None

    @property
    def trimmed(self) -> str:
        """The characters to trim around each value."""
        return " \t" if self.strip is True else self.strip or ""


def open_utf8(place: FilePlace, encoding: str | None) -> io.BufferedReader:
    """The text of a file as UTF-8 bytes, without a byte order mark."""
    stream = open_plain(place)
    start = stream.peek(3)
    marked = next((name for mark, name in _BYTE_ORDER_MARKS if start.startswith(mark)), None)
    if marked == "utf-8-sig":
        stream.read(len(codecs.BOM_UTF8))
    elif marked or (encoding and codecs.lookup(encoding).name not in ("utf-8", "utf-8-sig", "ascii")):
        return io.BufferedReader(Recoded(stream, place.name, marked or encoding or ""), 1 << 20)
    return stream


@dataclass(frozen=True)
class CsvHeader:
    """The names of the columns, and where the first row starts: after so many bytes of UTF-8, so many lines."""

    names: tuple[str, ...]
    delimiter: str
    bytes: int
    lines: int

    @staticmethod
    def read(place: FilePlace, options: CsvOptions) -> CsvHeader:
        with open_utf8(place, options.encoding) as stream:
            head, lines = _skipped(stream, options, place.name)
            sample = stream.read(_SAMPLE_BYTES)
            if len(sample) == _SAMPLE_BYTES:
                sample += read_line(stream, place.name)  # whole lines
        if not sample.strip():
            raise DataError(f"{place.name} is empty" + (" below the lines to skip" if lines else ""))
        if b"\0" in sample:
            hint = "if it is text in another encoding, set encoding: utf-16" if options.encoding is None else "check encoding"
            raise DataError(f"{place.name} is not a CSV file: it has zero bytes (byte {head + sample.index(0)}); {hint}")
        _check_width(sample, place.name)
        text = sample.decode("utf-8", "replace")
        delimiter = options.delimiter or ("\t" if _TABS.search(place.name.lower()) else _delimiter(text))
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        with long_values():
            first = next((record for record in reader if record), [])
        if not options.header:
            return CsvHeader(_distinct_names(_given_names(place, options, first), place), delimiter, head, lines)
        names = _distinct_names(_header_names(place, options, first), place)
        taken = "".join(line for line, _ in zip(io.StringIO(text, newline=""), range(reader.line_num), strict=False))
        if not sample.startswith(taken.encode()):  # bytes that are not UTF-8 were replaced
            raise DataError(not_utf8(place))
        return CsvHeader(names, delimiter, head + len(taken.encode()), lines + reader.line_num)


def _skipped(stream: io.BufferedReader, options: CsvOptions, name: str) -> tuple[int, int]:
    """Reads past the lines to skip at the top; returns their bytes and their number."""
    taken = lines = 0
    for _ in range(options.skip_lines):
        taken, lines = taken + len(read_line(stream, name)), lines + 1
    comment = (options.comment or "").encode()
    while comment and stream.peek(len(comment))[: len(comment)] == comment:
        taken, lines = taken + len(read_line(stream, name)), lines + 1
    return taken, lines


def _check_width(sample: bytes, name: str) -> None:
    """A first line of nothing but delimiters must not become a million columns."""
    first = sample[: sample.find(b"\n")] if b"\n" in sample else sample
    most = max(first.count(delimiter.encode()) for delimiter in _DELIMITERS)
    if most >= _MOST_COLUMNS:
        raise DataError(f"{name}: its first line has {most + 1:,} columns; the limit is {_MOST_COLUMNS:,}: is it a table?")


def _header_names(place: FilePlace, options: CsvOptions, first: list[str]) -> list[str]:
    if all(_is_number(cell) for cell in first):
        raise DataError(
            f"{place.name}: the first line looks like a row, not like names of columns ({', '.join(first[:5])}): "
            "set header: false, and names"
        )
    return _named([name.strip().strip(options.trimmed) for name in first])


def _given_names(place: FilePlace, options: CsvOptions, first: list[str]) -> list[str]:
    if options.names is None:
        return _named([""] * len(first))
    if len(options.names) != len(first):
        raise DataError(f"{place.name} has {len(first)} columns, names has {len(options.names)}")
    return list(options.names)


def _named(cells: Sequence[str]) -> list[str]:
    return [name or f"column_{number}" for number, name in enumerate(cells, 1)]


def _distinct_names(names: list[str], place: FilePlace) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        check_distinct(names, place.name)
    return tuple(names)


def _delimiter(text: str) -> str:
    """The delimiter that gives the most rows as many cells as the first row; if two are equal, the one with more cells."""
    best, best_score = ",", (0.0, 1)
    for delimiter in _DELIMITERS:
        widths = [len(row) for row in sample_rows(text, delimiter)]
        if widths and widths[0] > 1 and (score := (widths.count(widths[0]) / len(widths), widths[0])) > best_score:
            best, best_score = delimiter, score
    return best


def sample_rows(text: str, delimiter: str) -> list[list[str]]:
    """The first rows of a CSV text, blank lines left out."""
    with long_values():
        return [row for row in islice(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), _SAMPLE_ROWS) if row]


@contextmanager
def long_values() -> Iterator[None]:
    """Allows values longer than 128 kB, the usual limit of the csv module: a column may hold documents."""
    usual = csv.field_size_limit(2 * LONGEST_LINE_BYTES)
    try:
        yield
    finally:
        csv.field_size_limit(usual)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() not in ("nan", "inf", "-inf", "infinity")


# ---- found in a file that nobody described ----


@dataclass(frozen=True)
class FoundDialect:
    """`options` are the options of `table` that the file needs; `reasons` says why, for each of them."""

    columns: tuple[str, ...]
    options: dict[str, Any]
    reasons: dict[str, str]


def found_dialect(content: bytes, name: str) -> FoundDialect:
    """How the file `name`, which starts with `content`, is written."""
    options: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    encoding = _encoding(content)
    if encoding is not None:
        options["encoding"], reasons["encoding"] = encoding, "not UTF-8: this is a guess"
    text = content[: 4 * _SAMPLE_BYTES].decode(encoding or "utf-8-sig", "replace")[:_SAMPLE_BYTES]
    if len(text) == _SAMPLE_BYTES:
        text = text[: text.rfind("\n") + 1]
    comment, text = _without_comments(text)
    if comment is not None:
        options["comment"], reasons["comment"] = comment, f"skips lines at the top that start with {comment}"
    delimiter = _delimiter(text)
    if delimiter != ",":
        options["delimiter"], reasons["delimiter"] = delimiter, f"columns are separated by {_DELIMITERS[delimiter]}"
    rows = sample_rows(text, delimiter)
    if not rows:
        raise DataError(f"{name} has no rows")
    if len(rows[0]) == 1 and len(rows) > 1 and len(rows[1][-1].split()) > 2:
        raise DataError(f"{name} has no columns separated by a comma, semicolon, tab or bar: write it as CSV")
    if _padded(rows):
        options["strip"], reasons["strip"] = True, "trims spaces around values"
    columns = _named([cell.strip() for cell in rows[0]])
    if not _has_header(rows):
        columns = _named([""] * len(rows[0]))
        reasons["names"] = "there is no header: give the columns better names here, and in label"
        options["header"], options["names"] = False, columns
    elif len(set(columns)) < len(columns):
        twice = next(column for column, count in Counter(columns).items() if count > 1)
        reasons["skip_lines"] = f"its header has {twice!r} twice: the names below replace it"
        columns = _made_distinct(columns)
        options["skip_lines"], options["header"], options["names"] = 1, False, columns
    return FoundDialect(tuple(columns), options, reasons)


def has_columns(text: str, lines: int) -> bool:
    """Whether nearly all of the first lines have the same number of cells, three or more."""
    first = text.splitlines()[:lines]
    first = first[:-1] if 2 < len(first) < lines else first  # the last line may be cut
    for delimiter in _DELIMITERS:
        widths = [len(row) for row in sample_rows("\n".join(first), delimiter)]
        width, count = Counter(widths).most_common(1)[0] if widths else (0, 0)
        if len(first) >= 2 and width >= 3 and count >= len(widths) - len(widths) // 20 - 1:
            return True
    return False


def _encoding(content: bytes) -> str | None:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start >= len(content) - 4 and error.reason == "unexpected end of data":
            return None
        try:
            content.decode("cp1252")
        except UnicodeDecodeError:
            return "latin-1"
        return "cp1252"
    return None


def _without_comments(text: str) -> tuple[str | None, str]:
    """The comment mark, and the text without the lines at the top that start with it and have other cells than the rest."""
    mark = text[:1]
    lines = text.splitlines(keepends=True)
    place = next((i for i, line in enumerate(lines) if line[:1] != mark), len(lines))
    rest = "".join(lines[place:])
    if mark not in _COMMENTS or not mark or not rest:
        return None, text
    delimiter = _delimiter(rest)
    cells = Counter(len(row) for row in sample_rows(rest, delimiter)).most_common(1)[0][0]
    if any(len(row) == cells for row in sample_rows("".join(lines[:place]), delimiter)):
        return None, text  # a header such as "#id,name"
    return mark, rest


def _padded(rows: Sequence[Sequence[str]]) -> bool:
    cells = [cell for row in rows for cell in row if cell.strip()]
    return sum(cell != cell.strip() for cell in cells) > 0.05 * len(cells)


def _has_header(rows: list[list[str]]) -> bool:
    """Whether the first row holds names: over columns of numbers, names are not numbers; no name occurs as a value below."""
    first, body = [cell.strip() for cell in rows[0]], rows[1:]
    if not body:
        return not any(_is_number(cell) for cell in first)
    columns = list(zip(*[row for row in body if len(row) == len(first)], strict=True))
    over_numbers = [cell for cell, column in zip(first, columns, strict=False) if _mostly_numbers(column)]
    named = sum(any(map(str.isalpha, cell)) and not _is_number(cell) and cell not in NO_NUMBER for cell in over_numbers)
    if over_numbers:
        return named > sum(map(_is_number, over_numbers))
    if any(_is_number(cell) for cell in first):
        return False
    return not any(cell in {value.strip() for value in column} for cell, column in zip(first, columns, strict=False))


def _mostly_numbers(cells: Sequence[str]) -> bool:
    present = [cell for cell in cells if cell.strip()]
    return bool(present) and sum(map(_is_number, present)) > 0.7 * len(present)


def _made_distinct(names: Sequence[str]) -> list[str]:
    made: list[str] = []
    for name in names:
        number, other = 2, name
        while other in made:
            number, other = number + 1, f"{name}_{number}"
        made.append(other)
    return made
