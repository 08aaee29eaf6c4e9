"""Other rows for a run that was trained on a table: from files, queries and columns in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.data.files.places import located
from flatout.data.fitted.carried import CarriedColumns
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.table_rows import TableHost
from flatout.data.source import Source
from flatout.data.sources.tables.encoding import TableEncoder
from flatout.data.sources.tables.given import scan_given
from flatout.data.sources.tables.query import is_query
from flatout.data.sources.tables.sql import scan_sql


def other_table(fitted: Fitted, given: Any, targets: bool, carried: CarriedColumns) -> Source:
    """`given`: a path, a query, columns by name, a pyarrow.Table or a DataFrame. `targets`: with the label as y."""
    assert isinstance(fitted.host, TableHost)
    encoder, reading = TableEncoder(fitted.host), dict(fitted.reading)
    if not isinstance(given, str | Path):
        return encoder.read(scan_given(given, fitted.host.needed(targets), carried), targets, carried=carried)
    if isinstance(given, str) and is_query(given):
        scanned = scan_sql(given)
    else:
        scanned = encoder.scan(located(str(given), Path.cwd()), targets, also=carried.sources, **reading)
    return encoder.read(scanned, targets, on_bad=reading["on_bad"], carried=carried)
