"""Other rows for a run that was trained on a table: from files, queries and columns in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.data.files.bad import Bad, OnBad
from flatout.data.files.places import located
from flatout.data.fitted.carried import CarriedColumns
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.table_rows import TableHost
from flatout.data.source import Source
from flatout.data.sources.tables.encoding import TableEncoder
from flatout.data.sources.tables.given import scan_given
from flatout.data.sources.tables.query import is_query
from flatout.data.sources.tables.sql import scan_sql


def other_table(fitted: Fitted, given: Any, targets: bool, carried: CarriedColumns, say: Callable[[str], None]) -> Source:
    """`given`: a path, a query, columns by name, a pyarrow.Table or a DataFrame. `targets`: with the label as y.

    `say` gets a line for each column with values that training never saw, and for rows that were left out.
    """
    assert isinstance(fitted.host, TableHost)
    encoder, reading = TableEncoder(fitted.host), dict(fitted.reading)
    if not isinstance(given, str | Path):
        scanned, bad = scan_given(given, fitted.host.needed(targets), carried), Bad()
    elif isinstance(given, str) and is_query(given):
        scanned, bad = scan_sql(given), Bad(OnBad(reading["on_bad"]))
    else:
        place = located(str(given), Path.cwd())
        scanned, bad = encoder.scan(place, targets, also=carried.sources, **reading), Bad(OnBad(reading["on_bad"]))
    source, notes = encoder.read_noted(scanned, targets, bad=bad, carried=carried)
    for note in (*notes, scanned.bad.summary()):
        if note:
            say(note)
    return source
