"""Rows of a table as its files are read: those that `where` keeps, with the label if that is a derived column."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from flatout.data.fitted.derived.bounds import bounds_of, rules_out
from flatout.data.fitted.derived.derivation import Derivation
from flatout.data.fitted.derived.derived_values import DerivedColumn, DerivedDates, DerivedNumbers
from flatout.data.sources.tables.arrow import ArrowValues, Where
from flatout.data.sources.tables.derive import arrow_types
from flatout.data.sources.tables.schema import Types


class KeptRows:
    """`label`: its name, if it is derived. `left_out` and `seen` are rows of the pass that began last."""

    def __init__(self, derivation: Derivation, label: str) -> None:
        self._derivation = derivation
        self._label = label if label in derivation.trees else None
        self._filters = bool(derivation.conditions)
        self._for_conditions = derivation.condition_columns
        self._for_label = [] if self._label is None else derivation.raw_columns([self._label])
        self._bounds = bounds_of(derivation)
        self.seen, self.left_out = 0, 0

    def begin(self) -> None:
        self.seen, self.left_out = 0, 0

    @property
    def adds(self) -> Types:
        kinds = self._derivation.derived_kinds
        return {} if self._label is None else arrow_types({self._label: kinds[self._label]})

    def needs(self, wanted: Sequence[str]) -> Sequence[str]:
        made = self._for_label if self._label in wanted else []
        return list(dict.fromkeys([*(name for name in wanted if name != self._label), *made, *self._for_conditions]))

    def changed(self, batch: Any, where: Where, wanted: Sequence[str]) -> tuple[Any, Where]:
        import pyarrow as pa

        values = self._derivation.values(ArrowValues(batch))
        names = batch.schema.names
        columns = [
            _as_arrow(values.column(name), self.adds[name]) if name == self._label else batch.column(names.index(name))
            for name in wanted
        ]
        made = pa.RecordBatch.from_arrays(columns, names=list(wanted))
        if not self._filters:
            return made, where
        mask = values.passing()
        self.seen += batch.num_rows
        self.left_out += batch.num_rows - int(mask.sum())
        return (made, where) if mask.all() else (made.filter(pa.array(mask)), where.only(mask))

    @property
    def bounded(self) -> Sequence[str]:
        return list(dict.fromkeys(name for name, _ in self._bounds))

    def leaves_out(self, ends: Any, rows: int) -> bool:
        known = [bound for bound in self._bounds if bound[0] in ends.schema.names]
        if not any(rules_out(self._derivation, bound, ArrowValues(ends)) for bound in known):
            return False
        self.seen += rows
        self.left_out += rows
        return True

    def fingerprint(self) -> str:
        label = self._derivation.expressions.get(self._label or "")
        return json.dumps([list(self._derivation.where) if self._filters else [], label])

    def note(self, part: str = "") -> str | None:
        """How many rows a whole pass left out."""
        if not self._filters:
            return None
        conditions = " and ".join(self._derivation.where)
        title = f"{part}: " if part else ""
        return f"{title}where {conditions}: {self.left_out:,} of {self.seen:,} rows are left out"


def _as_arrow(column: DerivedColumn, kind: Any) -> Any:
    import pyarrow as pa

    if isinstance(column, DerivedNumbers):
        values = column.values.astype(np.bool_) if column.truth else column.values
        return pa.array(values, kind, mask=column.missing)
    if isinstance(column, DerivedDates):
        return pa.array(column.instants.astype("datetime64[us]"), kind, mask=column.missing)
    return pa.array(list(column.texts), pa.string()).take(pa.array(column.codes))
