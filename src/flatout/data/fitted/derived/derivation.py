"""The derived columns of a table: their expressions, and what was fitted for them. Raw values in, derived values out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from flatout.base.errors import RecipeError
from flatout.data.fitted.derived.asked import checked_expression, columns_in
from flatout.data.fitted.derived.checking import UNSURE, is_fitted
from flatout.data.fitted.derived.derived_values import (
    DATE,
    TEXT,
    TRUTH,
    Array,
    DerivedColumn,
    DerivedDates,
    DerivedNumbers,
    DerivedTexts,
)
from flatout.data.fitted.derived.evaluation import evaluated, spread
from flatout.data.fitted.derived.expressions import Expression, FunctionCall
from flatout.data.fitted.derived.fitted_tables import (
    UNKNOWN_GROUP,
    BinEdges,
    EarlierValues,
    FittedTable,
    GroupValues,
    table_from_json,
)
from flatout.data.fitted.derived.functions import FUNCTIONS, LAGGED
from flatout.data.fitted.derived.joined_table import JoinedTable
from flatout.data.fitted.derived.number_functions import as_text
from flatout.data.fitted.values import Texts, Values


class RowsNote(str):
    """A sentence about rows, which their number follows; a counter of unknown values has it beside names of columns."""


@dataclass(frozen=True)
class Derivation:
    """`kinds` has the kind of every raw column that expressions name. `time` orders the rows, for lags."""

    expressions: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    joins: tuple[JoinedTable, ...] = ()
    tables: Mapping[str, FittedTable] = field(default_factory=dict)
    time: str | None = None
    where: tuple[str, ...] = ()

    @cached_property
    def trees(self) -> dict[str, Expression]:
        """Of the derived columns, checked."""
        return {name: tree for name, (tree, _) in self._checked.items()}

    @cached_property
    def derived_kinds(self) -> dict[str, str]:
        """Of all columns that rows do not have by themselves: joined and derived ones."""
        joined = {name: kind for table in self.joins for name, kind in table.kinds.items()}
        return joined | {name: kind for name, (_, kind) in self._checked.items()}

    @cached_property
    def conditions(self) -> tuple[Expression, ...]:
        found = [checked_expression("where", text, self._kind, (), TRUTH) for text in self.where]
        return tuple(tree for tree, _, _ in found if tree is not None)

    @cached_property
    def condition_columns(self) -> list[str]:
        """The raw columns that `where` needs."""
        return self.raw_columns([name for tree in self.conditions for name in columns_in(tree)], fitted_inputs=True)

    def is_derived(self, name: str) -> bool:
        return name in self.derived_kinds

    def raw_columns(self, names: Iterable[str], *, fitted_inputs: bool = False) -> list[str]:
        """The raw columns that these columns are made of; with `fitted_inputs` also those that only fitting needs."""
        found: dict[str, None] = {}
        waiting, seen = list(names)[::-1], set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            joined = next((table for table in self.joins if name in table.kinds), None)
            if joined is not None:
                waiting += joined.on[::-1]
            elif name in self.trees:
                inner = [*columns_in(self.trees[name], fitted_inputs=fitted_inputs)]
                lags = any(_is_lag(node) for node in self.trees[name].walk())
                waiting += [*([self.time] if lags and self.time is not None else []), *inner][::-1]
            else:
                found[name] = None
        return list(found)

    def fitted_calls(self) -> dict[str, FunctionCall]:
        """The calls that are fitted on training rows, by their text."""
        return {
            node.key: node
            for tree in self.trees.values()
            for node in tree.walk()
            if isinstance(node, FunctionCall) and node.key
        }

    def values(self, raw: Values, unseen: Counter[str] | None = None) -> DerivedValues:
        return DerivedValues(self, raw, unseen)

    def with_tables(self, tables: Mapping[str, FittedTable]) -> Derivation:
        return replace(self, tables={**self.tables, **tables})

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": dict(self.expressions),
            "kinds": dict(self.kinds),
            "joins": [table.to_json() for table in self.joins],
            "fitted": {key: table.to_json() for key, table in self.tables.items()},
            "time": self.time,
            "where": list(self.where),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Derivation:
        joins = tuple(JoinedTable.from_json(one) for one in written["joins"])
        tables = {key: table_from_json(one) for key, one in written["fitted"].items()}
        return cls(written["columns"], written["kinds"], joins, tables, written["time"], tuple(written["where"]))

    @cached_property
    def _checked(self) -> dict[str, tuple[Expression, str]]:
        """RecipeError with every mistake. A derived column may name others, in any order, but not itself."""
        done: dict[str, tuple[Expression, str]] = {}
        mistakes: list[str] = []
        joined = {name: kind for table in self.joins for name, kind in table.kinds.items()}
        known = {**self.kinds, **joined}
        names = [*known, *self.expressions]
        under_way: list[str] = []

        def kind_of(name: str) -> str:
            if name not in self.expressions:
                return known[name]
            if name in under_way:
                circle = " -> ".join([*under_way[under_way.index(name) :], name])
                mistakes.append(f"derive: {name}: made of itself: {circle}")
                return UNSURE
            if name not in done:
                under_way.append(name)
                tree, kind, more = checked_expression(f"derive: {name}", self.expressions[name], kind_of, names)
                under_way.pop()
                mistakes.extend(more)
                if tree is None:
                    return UNSURE
                done[name] = tree, kind
            return done[name][1]

        for name in self.expressions:
            kind_of(name)
        if mistakes:
            raise RecipeError(list(dict.fromkeys(mistakes)), where="data")
        return done

    def _kind(self, name: str) -> str:
        return self.derived_kinds[name] if self.is_derived(name) else self.kinds[name]


class DerivedValues:
    """The `Values` of raw columns together with derived ones, each computed once. `unseen` counts rows with unknown values."""

    def __init__(self, derivation: Derivation, raw: Values, unseen: Counter[str] | None = None) -> None:
        self._derivation, self._raw, self._unseen = derivation, raw, unseen
        self._columns: dict[str, DerivedColumn] = {}
        self._places: dict[int, Array] = {}

    @property
    def rows(self) -> int:
        return self._raw.rows

    def numbers(self, name: str) -> Array:
        if not self._derivation.is_derived(name):
            return self._raw.numbers(name)
        column = self.column(name)
        assert isinstance(column, DerivedNumbers)
        return column.values

    def instants(self, name: str, format: str | None) -> tuple[Array, Array]:
        if not self._derivation.is_derived(name):
            return self._raw.instants(name, format)
        column = self.column(name)
        assert isinstance(column, DerivedDates)
        return column.instants, column.missing

    def texts(self, name: str) -> Texts:
        if not self._derivation.is_derived(name):
            return self._raw.texts(name)
        column = self.column(name)
        texts = column if isinstance(column, DerivedTexts) else as_text(column)
        return texts.codes, list(texts.texts)

    def column(self, name: str) -> DerivedColumn:
        """Any column that expressions may name."""
        if name not in self._columns:
            self._columns[name] = spread(self._made(name), self.rows)
        return self._columns[name]

    def computed(self, tree: Expression) -> DerivedColumn:
        return spread(evaluated(tree, self.column, self._fitted), self.rows)

    def passing(self) -> Array:
        """A mask of the rows for which all conditions hold: known, and true."""
        mask = np.ones(self.rows, dtype=np.bool_)
        for condition in self._derivation.conditions:
            column = self.computed(condition)
            assert isinstance(column, DerivedNumbers)
            mask &= column.values == 1
        return mask

    def moments(self) -> tuple[Array, Array]:
        """Of each row: microseconds or a number, and a mask of those that have none."""
        assert self._derivation.time is not None
        column = self.column(self._derivation.time)
        if isinstance(column, DerivedDates):
            return column.instants, column.missing
        assert isinstance(column, DerivedNumbers)
        return np.where(column.missing, 0.0, column.values), column.missing

    def _made(self, name: str) -> DerivedColumn:
        derivation = self._derivation
        if name in derivation.trees:
            return evaluated(derivation.trees[name], self.column, self._fitted)
        for number, table in enumerate(derivation.joins):
            if name in table.kinds:
                return table.column(name, self._joined(number, table))
        return self._read(name, derivation.kinds[name])

    def _read(self, name: str, kind: str) -> DerivedColumn:
        if kind == TEXT:
            return DerivedTexts(*self._raw.texts(name))
        if kind == DATE:
            return DerivedDates(*self._raw.instants(name, None))
        numbers = self._raw.numbers(name)
        finite = np.isfinite(numbers)
        return DerivedNumbers(numbers if finite.all() else np.where(finite, numbers, np.nan), kind == TRUTH)

    def _joined(self, number: int, table: JoinedTable) -> Array:
        if number not in self._places:
            places = table.places([self.column(name) for name in table.on], self.rows)
            self._places[number] = places
            keys = " and ".join(map(repr, table.on))
            self._count(
                f"{keys} has no row in {table.file}: its columns are missing there", int((places == UNKNOWN_GROUP).sum())
            )
        return self._places[number]

    def _fitted(self, call: FunctionCall) -> DerivedColumn:
        table = self._derivation.tables[call.key]
        if isinstance(table, BinEdges):
            column = evaluated(call.arguments[0], self.column, self._fitted)
            assert isinstance(column, DerivedNumbers)
            return table.of(column)
        groups = [self.computed(part) for part in call.by]
        if isinstance(table, GroupValues):
            found, strange = table.of(groups, self.rows)
            instead = "0" if call.name == "count" else "the value over all training rows"
            self._count(f"`{call.key}` has a group unknown from training, and gives {instead}", strange)
            return found
        assert isinstance(table, EarlierValues)
        earlier, strange, later = table.of(groups, *self.moments())
        self._count(f"`{call.key}` has a group unknown from the run's data, and gives null", strange)
        self._count(f"`{call.key}` comes after all rows of the run's data, and looks back from the last of them", later)
        return earlier

    def _count(self, words: str, rows: int) -> None:
        if self._unseen is not None and rows:
            self._unseen[RowsNote(words)] += rows


def _is_lag(node: Expression) -> bool:
    return isinstance(node, FunctionCall) and is_fitted(node) and FUNCTIONS[node.name].fitted == LAGGED
