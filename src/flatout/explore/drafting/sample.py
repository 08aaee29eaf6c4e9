"""The first rows of a table in any format, and the options that its files need to be read."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from flatout.base.errors import DataError
from flatout.data.files.places import FilePlace, find, open_plain
from flatout.data.sources.tables.csv import with_commas
from flatout.data.sources.tables.dialect import found_dialect
from flatout.data.sources.tables.scan import SUFFIXES, ReadOptions, Scan, format_of, scan_files
from flatout.explore.drafting.columns import WORDS, SampledColumn, missing_marks, seen
from flatout.explore.drafting.kinds import Given

_HEAD_BYTES = 16 << 20
_MOST_ROWS, _MOST_BYTES = 200_000, 256 << 20
_UNPACK_BYTES = 128 << 20


@dataclass(frozen=True)
class FileStart:
    """The start of a file, decompressed, up to the end of a row; read like a file. `whole`: it is the whole file."""

    name: str
    content: bytes
    whole: bool

    @classmethod
    def of(cls, place: FilePlace, most_bytes: int = _HEAD_BYTES) -> FileStart:
        with open_plain(place) as file:
            content = file.read(most_bytes + 1)
        if len(content) <= most_bytes:
            return cls(place.name, content, True)
        return cls(place.name, content[: _end_of_row(content, place.name)], False)

    @property
    def size(self) -> int:
        return len(self.content)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.content)

    def fingerprint(self) -> str:
        return hashlib.blake2b(self.content, digest_size=16).hexdigest()

    def local(self) -> None:
        return None


def _end_of_row(content: bytes, name: str) -> int:
    """The end of the last line that does not end inside quotes."""
    end, quotes = content.rfind(b"\n"), content.count(b'"')
    quotes -= content.count(b'"', end)
    while end > 0 and quotes % 2:
        before = content.rfind(b"\n", 0, end)
        quotes -= content.count(b'"', max(0, before), end)
        end = before
    if end <= 0:
        raise DataError(f"{name}: its first {len(content) >> 20} MB are one row: is it a table?")
    return end + 1


@dataclass(frozen=True)
class TableSample:
    """The first rows of a table. `rows` is the number of all its rows: exact or an estimate, as `exact` says.

    `options` are the options that `table` needs for these files, `reasons` says why, for each of them.
    """

    columns: dict[str, SampledColumn]
    rows: int
    exact: bool
    options: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    bad: str | None = None

    @property
    def whole(self) -> bool:
        """Whether the sample has all rows."""
        return self.exact and next(iter(self.columns.values())).rows == self.rows


def sample_of(given: Sequence[Given], label: str | None = None) -> TableSample:
    """DataError if the files can't be read as a table.

    A strange word in the column `label`, if given, is a bad label; in other columns of numbers it means "missing".
    """
    places = find([one.typed for one in given], None, "table", SUFFIXES)
    kind = format_of(places[0])
    if kind == "csv":
        return _csv(places, label)
    if kind == "jsonl":
        return _lines(places)
    found = scan_files(places, ReadOptions())
    return TableSample({name: seen(name, values) for name, values in first_rows(found).items()}, found.rows or 0, True)


def _lines(places: Sequence[FilePlace]) -> TableSample:
    head = FileStart.of(places[0])
    found = scan_files([head], ReadOptions(format="jsonl", on_bad="skip"))
    columns = {name: seen(name, values) for name, values in first_rows(found).items()}
    return TableSample(columns, *_all_rows(places, head, found.rows or 0), bad=found.bad.summary())


def _csv(places: Sequence[FilePlace], label: str | None) -> TableSample:
    head = FileStart.of(places[0])
    dialect = found_dialect(head.content, head.name)
    found = scan_files([head], ReadOptions(format="csv", on_bad="skip", text=dialect.columns, **dialect.options))
    cells = first_rows(found)
    options, reasons = dict(dialect.options), dict(dialect.reasons)
    if commas := [name for name, column in cells.items() if with_commas(column) is not None]:
        _take_commas(commas, cells, options, reasons)
    marks = sorted({mark for column in cells.values() for mark in missing_marks(column)})
    if label in cells:
        words = seen(label, cells[label], marks)
        marks = [mark for mark in marks if mark not in (*words.marks, *words.gaps)]
    columns = {name: seen(name, values, None if name in options.get("text", ()) else marks) for name, values in cells.items()}
    if marks:
        options["na"], reasons["na"] = marks, "values that mean missing"
    if zeros := [name for name, column in columns.items() if column.zeros]:
        options["text"] = [*options.get("text", ()), *zeros]
        reasons["text"] = "digits with leading zeros: read as text, not as numbers"
    misfits = [
        f"{column.bad} {'cell' if column.bad == 1 else 'cells'} of {name!r} not {WORDS[column.kind]}: {column.stray}"
        for name, column in columns.items()
        if column.bad
    ]
    bad = "; ".join(filter(None, [found.bad.summary(), *misfits]))
    return TableSample(columns, *_all_rows(places, head, found.rows or 0), options, reasons, bad or None)


def _take_commas(names: Sequence[str], cells: dict[str, Any], options: dict[str, Any], reasons: dict[str, str]) -> None:
    """A comma in a number is the decimal point if another delimiter separates columns; else it separates thousands."""
    import pyarrow.compute as pc

    if options.get("delimiter", ",") == ",":
        options["text"] = list(names)
        reasons["text"] = "numbers with commas, such as 1,234, are read as text: remove the commas to read them as numbers"
        return
    options["decimal"], reasons["decimal"] = ",", "1,5 is one and a half"
    cells.update({name: pc.replace_substring(cells[name], ",", ".") for name in names})


def first_rows(found: Scan) -> dict[str, Any]:
    """The first rows, one Arrow array for each column."""
    import pyarrow as pa

    pieces, rows, held_bytes = [], 0, 0
    for batch, _ in found.batches():
        pieces.append(batch)
        rows, held_bytes = rows + batch.num_rows, held_bytes + batch.nbytes
        if rows >= _MOST_ROWS or held_bytes >= _MOST_BYTES:
            break
    if not pieces:
        raise DataError("the table has no rows")
    whole = pa.Table.from_batches(pieces).combine_chunks()
    return {name: _one(whole.column(name)) for name in whole.column_names}


def _one(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _all_rows(places: Sequence[FilePlace], head: FileStart, rows: int) -> tuple[int, bool]:
    """The number of rows of all files, estimated by their size; exact if `head` is the only file, whole."""
    if head.whole and len(places) == 1:
        return rows, True
    return max(rows, round(rows * sum(map(plain_bytes, places)) / max(1, len(head.content)))), False


def plain_bytes(place: FilePlace) -> int:
    """The decompressed size. A large compressed file is not read to its end: three times its size is the guess."""
    with place.open() as raw, open_plain(place) as plain:
        if raw.read(64) == plain.peek(64)[:64]:
            return place.size
        if place.size > _UNPACK_BYTES:
            return 3 * place.size
        return sum(len(piece) for piece in iter(lambda: plain.read(1 << 20), b""))
