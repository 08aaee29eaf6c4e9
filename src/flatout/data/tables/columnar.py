"""Parquet and Arrow files: columns with types of their own.

Their readers trust what a file says of itself: lengths, offsets and text that are wrong are found only by a check of every
value (`checked`). Without it a damaged file reads memory that is not its own, which ends the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flatout.base.errors import DataError, FlatoutError
from flatout.data.allowance import within_memory
from flatout.data.damage import in_words
from flatout.data.places import Place
from flatout.data.tables.schema import Types, Where, check_distinct, plain


class ParquetPart:
    """One Parquet file; its blocks are its row groups."""

    def __init__(self, place: Place) -> None:
        self.name = place.name
        self._place = place
        with self._opened() as file:
            schema = file.schema_arrow
            groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        check_distinct(schema.names, self.name)
        self.types: Types = {field.name: plain(field.type) for field in schema}
        self.rows: int | None = sum(groups)
        self._blocks = tuple(rows for rows in groups if rows)

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        row = 0
        with self._opened() as file:
            for batch in file.iter_batches(rows_at_once, columns=list(types)):
                yield checked(batch, self.name, row), Where(self.name, row)
                row += batch.num_rows
        if row != self.rows:
            raise DataError(f"{self.name} tells of {self.rows} rows and holds {row}: it is damaged, or was changed meanwhile")

    def blocks(self) -> tuple[int, ...]:
        return self._blocks

    def fingerprint(self) -> str:
        return self._place.fingerprint()

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        from pyarrow import parquet

        with (
            self._place.open() as raw,
            _told(self._place, "Parquet", b"PAR1"),
            parquet.ParquetFile(raw, pre_buffer=False) as file,
        ):
            yield file


class ArrowPart:
    """One file of Arrow record batches (Feather too), with a table of contents at its end or as it was streamed."""

    def __init__(self, place: Place) -> None:
        self.name = place.name
        self._place = place
        with self._opened() as (schema, _):
            check_distinct(schema.names, self.name)
            self.types: Types = {field.name: plain(field.type) for field in schema}
        with self._opened(schema.names[:1]) as (_, batches):  # one column is enough to count by
            blocks = [checked(batch, self.name).num_rows for batch in batches]
        self.rows: int | None = sum(blocks)
        self._blocks = tuple(rows for rows in blocks if rows)

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        row = 0
        with self._opened(list(types)) as (_, batches):
            for batch in batches:
                checked(batch, self.name, row)
                for start in range(0, batch.num_rows, rows_at_once):
                    yield batch.slice(start, rows_at_once).select(list(types)), Where(self.name, row + start)
                row += batch.num_rows

    def blocks(self) -> tuple[int, ...]:
        return self._blocks

    def fingerprint(self) -> str:
        return self._place.fingerprint()

    @contextmanager
    def _opened(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Any, Iterator[Any]]]:
        """The schema of all columns, and batches of these."""
        import pyarrow as pa
        from pyarrow import ipc

        path = self._place.local()
        with (
            self._place.open() as raw,
            _told(self._place, "Arrow", b"ARROW1"),
            pa.PythonFile(raw, "r") if path is None else pa.memory_map(str(path)) as content,
        ):
            listed = content.read(6) == b"ARROW1"
            content.seek(0)
            opened = ipc.open_file if listed else ipc.open_stream
            reader = opened(content)
            schema = reader.schema
            if columns is not None:
                content.seek(0)
                wanted = ipc.IpcReadOptions(included_fields=[schema.names.index(name) for name in columns])
                reader = opened(content, options=wanted)
            yield schema, (reader.get_batch(at) for at in range(reader.num_record_batches)) if listed else iter(reader)


def checked(batch: Any, name: str, first_row: int = 0) -> Any:
    """The batch, if every value in it is what its type says. DataError names the column and, where it is one value, the row."""
    import pyarrow as pa

    try:
        batch.validate(full=True)
        return batch
    except pa.ArrowException as error:
        for column, field in zip(batch.columns, batch.schema, strict=True):
            try:
                column.validate(full=True)
            except pa.ArrowException as reason:
                where = f"{name}: column {field.name!r}"
                if "utf8" in str(reason).lower().replace("-", ""):
                    raise DataError(f"{where} holds text that is not UTF-8{_first_bad(column, first_row)}") from error
                raise DataError(f"{where} is damaged: {in_words(reason)}") from error
        raise DataError(f"{name} is damaged: {in_words(error)}") from error


def _first_bad(column: Any, first_row: int) -> str:
    """By halves; what a slice holds is checked alone."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return ""  # each row names a value; the values have no rows
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            column.slice(start, middle - start).validate(full=True)
            start = middle
        except pa.ArrowException:
            stop = middle
    return f", first in row {first_row + start + 1}"


@contextmanager
def _told(place: Place, kind: str, mark: bytes) -> Iterator[None]:
    """Whatever the library says of a file it can't read, in words that name the file."""
    try:
        with within_memory(place.name):
            yield
    except FlatoutError:
        raise
    except Exception as error:  # of ArrowException, OSError, ValueError and others, by where it stumbles
        raise DataError(unreadable(place, kind, mark, error)) from error


def unreadable(place: Place, kind: str, mark: bytes, error: Exception) -> str:
    """Why a file can't be read as what its name says it is."""
    with place.open() as file:
        start = file.read(64)
    if not start:
        return f"{place.name} is empty (0 bytes)"
    if start.startswith(mark):
        return f"{place.name} is a damaged {kind} file, cut off perhaps: {in_words(error)}"
    if start.isascii() and all(byte >= 32 or byte in b"\r\n\t" for byte in start):
        text = start[:24].decode()
        return f"{place.name} is no {kind} file: it starts with the text {text!r}: if it is CSV, set format: csv, or rename it"
    return f"{place.name} is no {kind} file: {in_words(error)}"
