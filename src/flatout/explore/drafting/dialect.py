"""How a CSV file is written: its encoding, what parts its columns, whether it has a header, what stands before it."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flatout.base.errors import DataError
from flatout.data.files.places import FilePlace
from flatout.data.files.unpacking import SUFFIXES as PACKED
from flatout.data.files.unpacking import open_plain
from flatout.data.sources.tables.cells import NO_NUMBER

HEAD_BYTES = 16 << 20
_SAMPLE_CHARACTERS = 256 << 10
_SAMPLE_ROWS = 1000
_COMMENTS = "#|%"
_DELIMITERS = ",;\t|"
_WORDS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class FileStart:
    """The start of a file, unpacked, up to the end of a row."""

    name: str
    content: bytes
    whole: bool

    @classmethod
    def of(cls, place: FilePlace, most_bytes: int = HEAD_BYTES) -> FileStart:
        with open_plain(place) as file:
            content = file.read(most_bytes + 1)
        if len(content) <= most_bytes:
            return cls(place.name, content, True)
        return cls(place.name, content[: _end_of_row(content, place.name)], False)

    @contextmanager
    def on_disk(self) -> Iterator[Path]:
        """As a file of its own, for readers that take files."""
        name = Path(self.name).name
        for packed in PACKED:
            name = name.removesuffix(packed)
        with TemporaryDirectory(prefix="flatout-new-") as folder:
            path = Path(folder) / name
            path.write_bytes(self.content)
            yield path


@dataclass(frozen=True)
class Dialect:
    """`options` are what a reader of tables has to be told, with the reason of each in `seen`."""

    columns: tuple[str, ...]
    options: dict[str, Any]
    seen: dict[str, str]


def dialect_of(head: FileStart) -> Dialect:
    options: dict[str, Any] = {}
    seen: dict[str, str] = {}
    encoding = _encoding(head.content)
    if encoding is not None:
        options["encoding"], seen["encoding"] = encoding, "not UTF-8: read as this, by the look of it"
    text = head.content[: 4 * _SAMPLE_CHARACTERS].decode(encoding or "utf-8-sig", "replace")[:_SAMPLE_CHARACTERS]
    if len(text) == _SAMPLE_CHARACTERS:
        text = text[: text.rfind("\n") + 1]
    comment, text = _without_comments(text)
    if comment is not None:
        options["comment"], seen["comment"] = comment, f"lines at the top that start with {comment} are left out"
    delimiter = _delimiter(text)
    if delimiter != ",":
        options["delimiter"], seen["delimiter"] = delimiter, f"columns are parted by {_WORDS[delimiter]}"
    rows = _records(text, delimiter)
    if not rows:
        raise DataError(f"{head.name} has no rows")
    if len(rows[0]) == 1 and len(rows) > 1 and len(rows[1].pop().split()) > 2:
        raise DataError(f"{head.name} is not cut into columns by a comma, semicolon, tab or bar: write it so")
    if _padded(rows):
        options["strip"], seen["strip"] = True, "spaces around values are trimmed"
    return _with_names(rows, options, seen)


def _with_names(rows: list[list[str]], options: dict[str, Any], seen: dict[str, str]) -> Dialect:
    first = [cell.strip() for cell in rows[0]]
    if _has_header(rows):
        names = [name or f"column_{place}" for place, name in enumerate(first, 1)]
        if len(set(names)) == len(names):
            return Dialect(tuple(names), options, seen)
        twice = next(name for name, count in Counter(names).items() if count > 1)
        options["skip_lines"], seen["skip_lines"] = 1, f"its header has {twice!r} twice: the names below take its place"
        names = _distinct(names)
    else:
        names = [f"column_{place}" for place in range(1, len(first) + 1)]
        seen["names"] = "there is no header: give the columns better names here, and in label"
    options["header"], options["names"] = False, names
    return Dialect(tuple(names), options, seen)


def _end_of_row(content: bytes, name: str) -> int:
    """A line break outside of quotes."""
    end, quotes = content.rfind(b"\n"), content.count(b'"')
    quotes -= content.count(b'"', end)
    while end > 0 and quotes % 2:
        before = content.rfind(b"\n", 0, end)
        quotes -= content.count(b'"', max(0, before), end)
        end = before
    if end <= 0:
        raise DataError(f"{name}: its first {len(content) >> 20} MB are one row: is it a table?")
    return end + 1


def _encoding(content: bytes) -> str | None:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
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
    """Lines at the top that begin with a mark and are not cut like those after them."""
    mark = text[:1]
    lines = text.splitlines(keepends=True)
    place = next((i for i, line in enumerate(lines) if line[:1] != mark), len(lines))
    rest = "".join(lines[place:])
    if mark not in _COMMENTS or not mark or not rest:
        return None, text
    delimiter = _delimiter(rest)
    cells = Counter(len(row) for row in _records(rest, delimiter)).most_common(1)[0][0]
    if any(len(row) == cells for row in _records("".join(lines[:place]), delimiter)):
        return None, text  # a header such as "#id,name"
    return mark, rest


def _delimiter(text: str) -> str:
    """The one that cuts the most rows into as many cells as the first one has; of two such, the one that cuts more."""
    best, best_score = ",", (0.0, 1)
    for delimiter in _DELIMITERS:
        widths = [len(row) for row in _records(text, delimiter)]
        if widths and widths[0] > 1 and (score := (widths.count(widths[0]) / len(widths), widths[0])) > best_score:
            best, best_score = delimiter, score
    return best


def _records(text: str, delimiter: str) -> list[list[str]]:
    usual = csv.field_size_limit(1 << 30)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        return [row for row, _ in zip(reader, range(_SAMPLE_ROWS), strict=False) if row]
    finally:
        csv.field_size_limit(usual)


def _padded(rows: Sequence[Sequence[str]]) -> bool:
    cells = [cell for row in rows for cell in row if cell.strip()]
    return sum(cell != cell.strip() for cell in cells) > 0.05 * len(cells)


def _has_header(rows: list[list[str]]) -> bool:
    """Names stand over columns of numbers; no name is a number, and none comes again below."""
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
    again = sum(cell in {value.strip() for value in column} for cell, column in zip(first, columns, strict=False))
    return again == 0


def _mostly_numbers(cells: Sequence[str]) -> bool:
    present = [cell for cell in cells if cell.strip()]
    return bool(present) and sum(map(_is_number, present)) > 0.7 * len(present)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() not in ("nan", "inf", "-inf", "infinity")


def _distinct(names: Sequence[str]) -> list[str]:
    made: list[str] = []
    for name in names:
        number, other = 2, name
        while other in made:
            number, other = number + 1, f"{name}_{number}"
        made.append(other)
    return made
