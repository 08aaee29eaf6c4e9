"""Record batches, files and queries of a table to encoded rows, with what was fitted on the training rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.files.bad import Bad
from flatout.data.fitted.codings import Date, FoldMeans, Number
from flatout.data.fitted.label import UNKNOWN
from flatout.data.fitted.table_rows import TableHost
from flatout.data.source import Source
from flatout.data.sources.tables.arrow import ArrowValues
from flatout.data.sources.tables.encoded import Gathering
from flatout.data.sources.tables.kinds import check_column
from flatout.data.sources.tables.rows import RowPlace, UsableRows
from flatout.data.sources.tables.scan import Scan, scan

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TableEncoder:
    host: TableHost

    def read(self, rows: Scan, targets: bool = True, *, folder: Path | None = None, on_bad: str = "error") -> Source:
        """All rows of other files, encoded with what was fitted; with the label as y where `targets` is set."""
        return self.read_noted(rows, targets, folder=folder, bad=Bad(on_bad))[0]

    def read_noted(
        self, rows: Scan, targets: bool = True, *, folder: Path | None = None, bad: Bad, part: str = ""
    ) -> tuple[Source, tuple[str, ...]]:
        """`read`, and what is to be said about those rows. `part` ("validation") names them in messages."""
        unseen = Counter[str]()
        usable = self.rows(rows, bad, targets, keep_bytes=0)
        gathering = Gathering(folder, rows.rows)
        try:
            for batch, place in usable.batches():
                gathering.add(self.encoded(batch, place, targets, unseen))
            source = gathering.finish()
        finally:
            gathering.discard()
        assert source is not None
        return source, tuple([*unseen_notes(unseen, part), *([said] if (said := bad.summary()) else [])])

    def scan(self, paths: Any, targets: bool = True, **options: Any) -> Scan:
        """The columns needed of other files; those that were text in training are read as text: "007" stays what it is."""
        columns = self.host.needed(targets)
        text = [name for name in self.host.needed(targets=False) if self.host.types[name] == "string"]
        return scan(paths, **{**options, "columns": columns, "text": sorted({*options.get("text", ()), *text} & {*columns})})

    def rows(self, found: Scan, bad: Bad, targets: bool, keep_bytes: int) -> UsableRows:
        """Those of `found` that can be encoded."""
        codings = self.host.codings.columns
        names = self.host.needed(targets)
        for name in names:
            check_column(name, found.columns, "the table was trained with a column that is missing here")
        numbers = [coding.name for coding in codings if isinstance(coding, Number)]
        dates = {coding.name: coding.format for coding in codings if isinstance(coding, Date)}
        label = self.host.label.name if targets else None
        return UsableRows(found, bad, keep_bytes, columns=names, label=label, numbers=numbers, dates=dates)

    def encoded(
        self, batch: Any, place: RowPlace, targets: bool, unseen: Counter[str] | None = None, others: FoldMeans | None = None
    ) -> dict[str, Array]:
        """One record batch; `others` is given for training rows. `place` says in messages where its rows stand."""
        values = ArrowValues(batch)
        columns = self.host.codings.encode(values, unseen, others)
        if targets:
            columns["y"] = self.host.label.encode(values)
            self._check_known(batch, columns["y"], place)
        return columns

    def _check_known(self, batch: Any, y: Array, place: RowPlace) -> None:
        label = self.host.label
        if label.classes is not None and (y == UNKNOWN).any():
            row = int((y == UNKNOWN).argmax())
            value = batch.column(batch.schema.names.index(label.name))[row].as_py()
            known = ", ".join(label.classes[:8])
            raise DataError(f"{place.of(row)}: label {label.name!r} is {value!r}, which no training row has (known: {known})")


def unseen_notes(unseen: Counter[str], part: str) -> Iterator[str]:
    for name, count in unseen.items():
        if count:
            yield f"{part + ': ' if part else ''}{name!r} has a value unknown from training in {count} rows"
