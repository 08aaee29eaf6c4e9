"""A table from an SQL query, run by DuckDB over files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError, MissingExtra, UsageError, did_you_mean
from flatout.base.passing import passing_folder
from flatout.data.files.bad import Bad
from flatout.data.order.split import hash_batch
from flatout.data.sources.tables.arrow import Where
from flatout.data.sources.tables.scan import Scan
from flatout.data.sources.tables.schema import Types, check_distinct, plain
from flatout.data.sources.tables.validity import checked

_ROWS_AT_ONCE = 65536


def scan_sql(query: str, base_folder: str | os.PathLike[str] | None = None, label: str | None = None) -> Scan:
    """The rows of `select ... from 'x.parquet'`, streamed. Relative paths in the query start at `base_folder`.

    The query runs once here, to check it and to count its rows, and again for each pass. It can only read.
    """
    part = QueryPart(query, Path(base_folder or "."))
    if label is not None and label not in part.types:
        raise DataError(f"sql: the query gives no column {label!r} for the label; {did_you_mean(label, part.types)}")
    if not part.rows:
        raise DataError(f"sql: the query gives no rows: {query}")
    return Scan([part], dict(part.types), Bad())


class QueryPart:
    """One query. Every pass must give the same rows in the same order; this is checked."""

    name = "the query"

    def __init__(self, query: str, base_folder: Path) -> None:
        self._query = query.strip().rstrip(";")
        self._base_folder = base_folder
        self.types: Types = {}
        self.rows: int | None = None
        self._content = ""
        with self._reader(_ROWS_AT_ONCE) as reader:
            check_distinct(reader.schema.names, self.name)
            self.types = {field.name: plain(field.type) for field in reader.schema}
            for _ in self._checked(reader):
                pass

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        row = 0
        with self._reader(rows_at_once) as reader:
            for batch in self._checked(reader):
                for start in range(0, batch.num_rows, rows_at_once):
                    yield batch.slice(start, rows_at_once).select(list(types)), Where(self.name, row + start)
                row += batch.num_rows

    def blocks(self) -> tuple[int, ...] | None:
        return None if self.rows is None else (self.rows,)

    def fingerprint(self) -> str:
        return self._content

    def _checked(self, reader: Any) -> Iterator[Any]:
        import pyarrow as pa

        plain_ones = [field.name for field in reader.schema if not pa.types.is_nested(plain(field.type))]
        digest, rows = hashlib.blake2b(self._query.encode(), digest_size=16), 0
        for batch in reader:
            checked(batch, "sql: the query", rows)
            digest.update(hash_batch(batch, 0, plain_ones).tobytes())
            rows += batch.num_rows
            yield batch
        if self.rows is None:
            self.rows, self._content = rows, digest.hexdigest()
        elif (rows, digest.hexdigest()) != (self.rows, self._content):
            raise DataError(
                f"sql: the query gave other rows than the first time, or another order ({self.rows} rows, then {rows}): "
                "its files changed, or it is random. Add an order by, and leave out random() and sample"
            )

    @contextmanager
    def _reader(self, rows_at_once: int) -> Iterator[Any]:
        """Record batches from a new connection: an open result blocks its connection."""
        try:
            import duckdb
            import pyarrow as pa
        except ImportError as error:
            raise MissingExtra("duckdb", "sql", "a table from a query") from error

        try:
            with passing_folder("flatout-duckdb") as spill, closing(duckdb.connect(":memory:")) as connection:
                for setting, value in self._settings(spill).items():
                    connection.execute(f"set {setting} = '{value}'")
                _check_reads_only(connection, self._query)
                yield connection.sql(self._query).to_arrow_reader(rows_at_once)
        except duckdb.ParserException as error:
            raise UsageError(f"sql: {error}") from error
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise DataError(f"sql: {error}") from error

    def _settings(self, spill: Path) -> dict[str, str]:
        """`spill` is a folder for what does not fit into memory, one for each connection: they use the same file names."""
        folder = str(self._base_folder.resolve()).replace("'", "''")
        return {
            "file_search_path": folder,
            "temp_directory": str(spill).replace("'", "''"),
            "threads": "1",  # with more threads, the order of a group by changes from run to run
            "python_enable_replacements": "false",  # a table name never means a Python variable
            "enable_progress_bar": "false",
            "lock_configuration": "true",
        }


def _check_reads_only(connection: Any, query: str) -> None:
    import duckdb

    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            f"sql: expected one select, got {len(statements)} statements"
            if len(statements) != 1
            else f"sql: expected a select, which only reads; got {statements[0].type.name.lower()}"
        )
