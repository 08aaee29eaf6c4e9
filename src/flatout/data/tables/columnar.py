"""Parquet and Arrow files: columns with types of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flatout.base.errors import DataError
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
                yield batch, Where(self.name, row)
                row += batch.num_rows

    def blocks(self) -> tuple[int, ...]:
        return self._blocks

    def fingerprint(self) -> str:
        return self._place.fingerprint()

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        import pyarrow as pa
        from pyarrow import parquet

        with self._place.open() as raw:
            try:
                with parquet.ParquetFile(raw, pre_buffer=False) as file:
                    yield file
            except (pa.ArrowException, OSError) as error:
                raise DataError(unreadable(self._place, "Parquet", b"PAR1", error)) from error


class ArrowPart:
    """One file of Arrow record batches (Feather too), with a table of contents at its end or as it was streamed."""

    def __init__(self, place: Place) -> None:
        self.name = place.name
        self._place = place
        with self._opened() as (schema, _):
            check_distinct(schema.names, self.name)
            self.types: Types = {field.name: plain(field.type) for field in schema}
        with self._opened(schema.names[:1]) as (_, batches):  # one column is enough to count by
            blocks = [batch.num_rows for batch in batches]
        self.rows: int | None = sum(blocks)
        self._blocks = tuple(rows for rows in blocks if rows)

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        row = 0
        with self._opened(list(types)) as (_, batches):
            for batch in batches:
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
        try:
            with self._place.open() as raw, pa.PythonFile(raw, "r") if path is None else pa.memory_map(str(path)) as content:
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
        except (pa.ArrowException, OSError) as error:
            raise DataError(unreadable(self._place, "Arrow", b"ARROW1", error)) from error


def unreadable(place: Place, kind: str, mark: bytes, error: Exception) -> str:
    """Why a file can't be read as what its name says it is."""
    with place.open() as file:
        start = file.read(64)
    if not start:
        return f"{place.name} is empty (0 bytes)"
    if start.startswith(mark):
        return f"{place.name} is a damaged {kind} file, cut off perhaps: {error}"
    if start.isascii() and all(byte >= 32 or byte in b"\r\n\t" for byte in start):
        return f"{place.name} is no {kind} file: it starts with the text {start[:24].decode()!r}: if it is CSV, set format: csv"
    return f"{place.name} is no {kind} file: {error}"
