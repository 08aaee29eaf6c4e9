"""Parquet and Arrow files.

Their readers trust the file, so every batch is checked before it is used: see validity.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from flatout.base.errors import DataError, FlatoutError
from flatout.data.files.allowance import within_memory
from flatout.data.files.damage import in_words
from flatout.data.files.places import FilePlace
from flatout.data.sources.tables.arrow import Where
from flatout.data.sources.tables.ipc_sizes import check_batches_fit
from flatout.data.sources.tables.schema import Types, check_distinct, plain
from flatout.data.sources.tables.validity import checked
from flatout.data.sources.tables.value_ranges import ends_of

_BATCH_BYTES = 512 << 20


class RowFilter(Protocol):
    """Leaves rows out, of which some need not be read."""

    @property
    def bounded(self) -> Sequence[str]:
        """Columns whose range of values may show that no row is kept."""

    def leaves_out(self, ends: Any, rows: int) -> bool:
        """Whether all of these rows, of which `ends` has the smallest and the largest values, are left out. Then they count."""


class ParquetPart:
    """One Parquet file; its blocks are its row groups."""

    def __init__(self, place: FilePlace) -> None:
        self.name = place.name
        self._place = place
        self._filter: RowFilter | None = None
        with self._opened() as file:
            schema = _readable(file.schema_arrow)
            groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        check_distinct(schema.names, self.name)
        self.types: Types = {field.name: plain(field.type) for field in schema}
        self.rows: int | None = sum(groups)
        self._blocks = tuple(rows for rows in groups if rows)
        self._texts = [field.name for field in schema if _is_text(field.type)]

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        row = 0
        with self._opened([name for name in types if name in self._texts]) as file:
            most = min(rows_at_once, self._most_rows(file))
            for groups, left_out in self._runs(file):
                row += left_out
                for batch in file.iter_batches(most, groups, columns=list(types)) if groups else ():
                    for piece in _in_bounds(checked(batch, self.name, row)):
                        yield piece, Where(self.name, row)
                        row += piece.num_rows
        if row != self.rows:
            raise DataError(f"{self.name} declares {self.rows} rows and has {row}: damaged, or changed while it was read")

    def blocks(self) -> tuple[int, ...]:
        return self._blocks

    def fingerprint(self) -> str:
        return self._place.fingerprint()

    def filtered(self, rows: RowFilter) -> ParquetPart:
        """The same file, without the row groups of which no row is kept."""
        part = copy.copy(self)
        part._filter = rows
        return part

    def _runs(self, file: Any) -> Iterator[tuple[list[int], int]]:
        """Neighbouring row groups to read, in order, and how many rows before them are left out."""
        numbers = list(range(file.metadata.num_row_groups))
        if self._filter is None or not self._filter.bounded:
            yield numbers, 0
            return
        run, before = list[int](), 0
        for number in numbers:
            group = file.metadata.row_group(number)
            ends = ends_of(group, file.schema_arrow, self._filter.bounded)
            if ends is None or not self._filter.leaves_out(ends, group.num_rows):
                run.append(number)
                continue
            if run:
                yield run, before
                run, before = [], 0
            before += group.num_rows
        yield run, before

    def _most_rows(self, file: Any) -> int:
        """The rows of a batch that keep its size within bounds.

        Uses only the metadata of row groups: reading that of a damaged column can crash the process.
        """
        groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
        widest = max((group.total_byte_size / group.num_rows for group in groups if group.num_rows), default=0.0)
        return max(1, int(_BATCH_BYTES / max(widest, 1)))

    @contextmanager
    def _opened(self, named: Sequence[str] = ()) -> Iterator[Any]:
        """Reads the columns `named` as dictionaries, as they are stored."""
        from pyarrow import parquet

        with (
            self._place.open() as raw,
            _told(self._place, "Parquet", b"PAR1"),
            parquet.ParquetFile(raw, pre_buffer=False, read_dictionary=list(named)) as file,
        ):
            yield file


class ArrowPart:
    """One file of Arrow record batches (also Feather), as a file with a footer or as a stream."""

    def __init__(self, place: FilePlace) -> None:
        self.name = place.name
        self._place = place
        path = place.local()
        with self._opened() as (schema, _):
            check_distinct(schema.names, self.name)
            self.types: Types = {field.name: plain(field.type) for field in schema}
        if path is not None:
            check_batches_fit(path, self.name)
        with self._opened(schema.names[:1]) as (_, batches):  # one column is enough to count rows
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
        """The schema of all columns, and batches of the given ones."""
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
            schema = _readable(reader.schema)
            if columns is not None:
                content.seek(0)
                wanted = ipc.IpcReadOptions(included_fields=[schema.names.index(name) for name in columns])
                reader = opened(content, options=wanted)
            yield schema, (reader.get_batch(at) for at in range(reader.num_record_batches)) if listed else iter(reader)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _in_bounds(batch: Any) -> Iterator[Any]:
    """The batch in pieces of bounded size: in a dictionary, one long text may be the value of every row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    longest = 1
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
            longest = max(longest, pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    rows = max(1, _BATCH_BYTES // longest)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _readable(schema: Any) -> Any:
    """Reads all names and time zones now: they are decoded lazily, and may be damaged."""
    for field in schema:
        str(field)
    return schema


@contextmanager
def _told(place: FilePlace, kind: str, mark: bytes) -> Iterator[None]:
    """Turns any error of the library into a DataError that names the file."""
    try:
        with within_memory(place.name):
            yield
    except FlatoutError:
        raise
    except Exception as error:  # ArrowException, OSError, ValueError and others
        raise DataError(unreadable(place, kind, mark, error)) from error


def unreadable(place: FilePlace, kind: str, mark: bytes, error: Exception) -> str:
    """Why a file can't be read as the format that its name says."""
    with place.open() as file:
        start = file.read(64)
    if not start:
        return f"{place.name} is empty (0 bytes)"
    if start.startswith(mark):
        return f"{place.name} is a damaged {kind} file, perhaps cut off: {in_words(error)}"
    if start.isascii() and all(byte >= 32 or byte in b"\r\n\t" for byte in start):
        text = start[:24].decode()
        return f"{place.name} is not {kind}: it starts with the text {text!r}: if it is CSV, set format: csv, or rename it"
    return f"{place.name} is not {kind}: {in_words(error)}"
