"""CSV files: Arrow reads every cell as text, then each column gets a type. So a message can name the file, line and column.

The first rows of a table decide the type of a column: whole numbers, numbers, true and false, dates, or text. Later rows can
only widen it: whole numbers to numbers with fractions, dates to times. A cell that does not fit is bad: numbers never become
text.
"""

from __future__ import annotations

import codecs
import hashlib
import io
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.files.bad import Bad
from flatout.data.files.places import FilePlace
from flatout.data.sources.tables.arrow import Where
from flatout.data.sources.tables.csv_faults import CsvFaults, comma_numbers, misfit, ragged_row, unreadable_csv
from flatout.data.sources.tables.dialect import NO_NUMBER, CsvHeader, CsvOptions, open_utf8
from flatout.data.sources.tables.schema import Types
from flatout.data.sources.tables.utf8 import not_utf8

_BLOCK_BYTES = 8 << 20
_DECIMAL_COMMA = r"^(\s*[+-]?\d*),(\d+([eE][+-]?\d+)?\s*)$"
LEAD = 65536
"""So many cells, the first that aren't missing, decide the type of a column."""
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_FEW = 0.1  # of the lead: fewer cells of text than this among numbers are mistakes
_PROBE = 64
_WITH_COMMA = r"^[+-]?(\d+,\d+|\d{1,3}(,\d{3})+(\.\d+)?)$"
_DATE = r"^\d{4}-\d{2}-\d{2}([ T].*)?$"
_HEX = r"^\s*[+-]?0[xX]"


class CsvPart:
    """One CSV file. `survey` reads it once, to find the types of its columns, its number of rows, and its bad rows."""

    def __init__(self, place: FilePlace, options: CsvOptions, bad: Bad, keep_bytes: int = 0) -> None:
        """`keep_bytes`: if the converted columns take no more, `batches` has them from the survey, without reading again."""
        self.name = place.name
        self.rows: int | None = None
        self._place, self._options, self._bad = place, options, bad
        self._head = CsvHeader.read(place, options)
        self.types: Types = dict.fromkeys(self._head.names)
        self._told = 0
        self._kept = _Kept(keep_bytes)
        self._suspects: set[str] = set()  # columns with bad cells: their rows are left out whichever columns are read

    @cached_property
    def _faults(self) -> CsvFaults:
        return CsvFaults(self._place, self._options, self._head)

    def survey(self, types: Types) -> Types:
        """These types, widened where this file needs it. Bad rows are reported to `bad`."""
        import pyarrow as pa

        types = dict(types)
        rows = 0
        for batch, where in self._texts(list(types), tell=True):
            kept = np.ones(batch.num_rows, bool)
            columns = {}
            for cells, (name, kind) in zip(batch.columns, types.items(), strict=True):
                columns[name], bad = converted(cells, kind)
                if bad is not None or pa.types.is_null(kind):
                    types[name] = fitting(cells, kind)
                    self._check_commas(name, types[name], cells)
                    columns[name], bad = converted(cells, types[name])
                if bad is not None:
                    self._suspects.add(name)
                    for row in np.flatnonzero(bad & kept):
                        self._bad.found(where.of(int(row)), misfit(name, types[name], cells[int(row)].as_py()))
                    kept &= ~bad
            rows += int(kept.sum())
            self._kept.add(*_good_rows(columns, kept, where))
        self.rows = rows
        return types

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        if (found := self._kept.of(types)) is not None:
            for values, where in found:
                yield from _in_pieces(values, where, rows_at_once)
            return
        rows = 0
        kinds = {**types, **{name: self.types[name] for name in sorted(self._suspects - set(types))}}
        for batch, where in self._texts(list(kinds), tell=False):
            kept = np.ones(batch.num_rows, bool)
            columns = {}
            for cells, (name, kind) in zip(batch.columns, kinds.items(), strict=True):
                columns[name], bad = converted(cells, kind)
                if bad is not None:
                    kept &= ~bad
            values, where = _good_rows({name: columns[name] for name in types}, kept, where)
            rows += values.num_rows
            yield from _in_pieces(values, where, rows_at_once)
        if rows != self.rows:
            raise DataError(f"{self.name} had {self.rows} rows at first and now has {rows}: it was changed while it was read")

    def blocks(self) -> tuple[int, ...] | None:
        return None if self.rows is None else (self.rows,)

    def fingerprint(self) -> str:
        return hashlib.blake2b(repr((self._place.fingerprint(), asdict(self._options))).encode(), digest_size=16).hexdigest()

    def _texts(self, columns: Sequence[str], tell: bool) -> Iterator[tuple[Any, Where]]:
        """Batches of cells as strings, null where missing. Rows of another length are left out, and reported if `tell`."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        ragged: list[Any] = []

        def leave_out(row: Any) -> str:
            ragged.append(row)
            return "skip"

        with open_utf8(self._place, self._options.encoding) as stream:
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
                        if tell and ragged:
                            self._tell_ragged(ragged, row)
                        yield self._tidied(batch), Where(self.name, 0, rows, self._line_of)
                if tell and watched.quotes % 2:
                    self._faults.check_quotes()
                if tell and ragged:
                    self._tell_ragged(ragged, None)
            except pa.ArrowException as error:
                raise DataError(unreadable_csv(self._place, str(error), _BLOCK_BYTES)) from error

    def _line_of(self, row: int) -> int:
        return self._faults.line_of(row)

    def _tell_ragged(self, ragged: list[Any], before: int | None) -> None:
        """Reports the rows of another length up to `before`, each once, in order."""
        while len(ragged) > self._told and (before is None or ragged[self._told].number <= before):
            row = ragged[self._told]
            self._told += 1
            self._bad.found(f"{self.name}, line {self._line_of(row.number - 1)}", ragged_row(row))

    def _check_commas(self, name: str, kind: Any, cells: Any) -> None:
        import pyarrow as pa

        example = with_commas(cells) if pa.types.is_string(kind) else None
        if example is not None:
            raise DataError(f"{self.name}: {comma_numbers(name, example)}")

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


class _Kept:
    """Batches of a survey, as long as they take no more than `most_bytes` and all have the same types."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._batches: list[tuple[Any, Where]] = []

    def add(self, values: Any, where: Where) -> None:
        self._bytes += values.nbytes
        if self._bytes > self._most_bytes or (self._batches and values.schema != self._batches[0][0].schema):
            self._most_bytes, self._batches = -1, []  # nothing is kept any more
        else:
            self._batches.append((values, where))

    def of(self, types: Types) -> list[tuple[Any, Where]] | None:
        """These columns; None if they are not kept, or have other types here."""
        if not self._batches or any(self._batches[0][0].schema.field(name).type != kind for name, kind in types.items()):
            return None
        return [(values.select(list(types)), where) for values, where in self._batches]


def _good_rows(columns: dict[str, Any], kept: np.ndarray[Any, Any], where: Where) -> tuple[Any, Where]:
    import pyarrow as pa

    values = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return (values, where) if kept.all() else (values.filter(pa.array(kept)), where.only(kept))


def _in_pieces(values: Any, where: Where, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
    for start in range(0, values.num_rows, rows_at_once):
        yield values.slice(start, rows_at_once), where.part(start, start + rows_at_once)


class _Watched:
    """A stream that Arrow reads from. It counts quotes, and refuses bytes that are not UTF-8.

    Arrow checks only the columns that it reads, and fails without naming the byte in a row that it leaves out.
    """

    closed = False

    def __init__(self, stream: io.BufferedReader, place: FilePlace) -> None:
        self._stream, self._place = stream, place
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.quotes = 0

    def read(self, size: int = -1) -> bytes:
        try:
            content = self._stream.read(size)
        except OSError as error:
            raise DataError(f"{self._place.name} can't be read to its end: {error}") from error
        self.quotes += content.count(b'"')
        if not content.isascii() or self._decoder.getstate()[0]:
            try:
                self._decoder.decode(content)
            except UnicodeDecodeError as error:
                raise DataError(not_utf8(self._place)) from error
        return content

    def close(self) -> None:
        """The caller closes the stream."""


def _numbered(count: int, start: int, ragged: Sequence[Any]) -> tuple[Any, int]:
    """The row numbers of the next `count` good rows from `start` on, and the number of the row after them."""
    numbers = [row.number - 1 for row in ragged[bisect_left(ragged, start, key=lambda row: row.number - 1) :]]
    stop = start + count
    inside = 0
    while inside < len(numbers) and numbers[inside] < stop:
        inside, stop = inside + 1, stop + 1
    rows = np.arange(start, stop)
    return (np.delete(rows, np.array(numbers[:inside], np.int64) - start) if inside else rows), stop


# ---- types of cells ----


def _families() -> tuple[tuple[Any, ...], ...]:
    """Types from narrow to wide: a cell that fits a type fits those after it in the same family."""
    import pyarrow as pa

    moments = [tuple(pa.timestamp(unit, zone) for unit in ("s", "us", "ns")) for zone in (None, "UTC")]
    return (pa.int64(), pa.float64()), (pa.bool_(),), (pa.date32(), *moments[0]), moments[1]


def inferred(cells: Any) -> Any:
    """The type of a column by its first cells (a string array, null where missing); null if all are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pc.unique(cells)
    if _without_marks(words).null_count == len(words):
        return pa.null()
    kind = _narrowest(words)
    if kind is not None:
        return kind
    tidy = _without_marks(cells)
    for pattern in (NUMBER, _DATE):
        fits = pc.fill_null(pc.match_substring_regex(tidy, pattern), False)
        alike = pc.sum(fits).as_py() or 0
        if alike and alike >= (1 - _FEW) * (len(tidy) - tidy.null_count):
            return _narrowest(pc.unique(tidy.filter(fits))) or pa.string()
    return pa.string()


def with_commas(cells: Any) -> str | None:
    """One of the cells, if nearly all are numbers with commas: decimal points in one country, thousands in another."""
    import pyarrow.compute as pc

    words = cells.drop_null().slice(0, LEAD)
    fits = pc.match_substring_regex(words, _WITH_COMMA)
    whole = pc.match_substring_regex(words, NUMBER)
    alike = pc.sum(fits).as_py() or 0
    mostly = alike and alike + (pc.sum(whole).as_py() or 0) >= (1 - _FEW) * len(words)
    return str(words.filter(fits)[0].as_py()) if mostly else None


def fitting(cells: Any, kind: Any) -> Any:
    """The narrowest type of the family of `kind`, from `kind` on, that fits all cells which fit the family."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        kind = inferred(cells.drop_null().slice(0, LEAD))
    if pa.types.is_null(kind) or pa.types.is_string(kind):
        return kind
    wider = next(family[family.index(kind) :] for family in _families() if kind in family)
    for candidate in wider:
        if _cast(cells, candidate) is not None:
            return candidate
    _, bad = converted(cells, wider[-1])
    good = cells if bad is None else cells.filter(pa.array(~bad))
    return next(candidate for candidate in wider if _cast(good, candidate) is not None)


def converted(cells: Any, kind: Any) -> tuple[Any, np.ndarray[Any, Any] | None]:
    """The cells as values of `kind`, and a mask of those that do not fit (null in the values); None if all fit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(kind):
        return pa.nulls(len(cells)), None
    if pa.types.is_string(kind):
        return cells, None
    values = _cast(cells, kind)
    if values is not None:
        return values, None
    distinct = _without_marks(cells).dictionary_encode()
    unfit = np.zeros(len(distinct.dictionary), bool)
    _mark_unfit(distinct.dictionary, kind, unfit, 0)
    bad = pc.fill_null(pa.array(unfit).take(distinct.indices), False)
    fit = pc.if_else(bad, pa.scalar(None, pa.string()), distinct.cast(pa.string()))
    return _cast(fit, kind), bad.to_numpy(zero_copy_only=False)


def _mark_unfit(words: Any, kind: Any, unfit: np.ndarray[Any, Any], start: int) -> None:
    """By halves: finds the few that do not fit in a few casts."""
    if _cast(words, kind) is not None:
        return
    if len(words) == 1:
        unfit[start] = True
        return
    half = len(words) // 2
    _mark_unfit(words.slice(0, half), kind, unfit, start)
    _mark_unfit(words.slice(half), kind, unfit, start + half)


def _narrowest(words: Any) -> Any | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    for family in _families():
        for kind in family:
            if _cast(words, kind) is not None:
                hexadecimal = pa.types.is_integer(kind) and pc.any(pc.match_substring_regex(words, _HEX)).as_py()
                return None if hexadecimal else kind
    return None


def _cast(cells: Any, kind: Any) -> Any | None:
    """Values of `kind`, or None if a cell does not fit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(cells) > _PROBE and _cast(cells.slice(0, _PROBE), kind) is None:
        return None  # a cast that fails for every cell takes a thousand times as long as one that succeeds
    for tidy in (False, True):  # tidying takes as long as the cast, and most columns need none
        try:
            values = (_without_marks(cells) if tidy else cells).cast(kind)
        except pa.ArrowInvalid:
            continue
        if pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py():
            return pc.if_else(pc.is_nan(values), pa.scalar(None, kind), values)
        return values
    return None


def _without_marks(cells: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(cells)
    missing = pc.is_in(trimmed, value_set=pa.array([*NO_NUMBER, ""]))
    return pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)
