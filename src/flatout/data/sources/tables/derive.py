"""The derived columns that a recipe asks for, checked against the columns of its table; second files are read here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from flatout.base.errors import DataError, FlatoutError, RecipeError, did_you_mean
from flatout.data.files.places import find
from flatout.data.fitted.derived.asked import AskedColumns, AskedJoin, checked_expression, columns_in
from flatout.data.fitted.derived.checking import UNSURE, is_fitted
from flatout.data.fitted.derived.derivation import Derivation
from flatout.data.fitted.derived.derived_values import (
    DATE,
    NUMBER,
    TEXT,
    TRUTH,
    WORDS,
    DerivedColumn,
    DerivedDates,
    DerivedNumbers,
)
from flatout.data.fitted.derived.expressions import Expression, FunctionCall, NamedColumn
from flatout.data.fitted.derived.fitted_tables import group_keys
from flatout.data.fitted.derived.functions import FUNCTIONS, LAGGED
from flatout.data.fitted.derived.joined_table import JoinedTable
from flatout.data.sources.tables.arrow import ArrowValues, is_date, is_nested, is_number
from flatout.data.sources.tables.scan import SUFFIXES, ReadOptions, Scan, scan_files
from flatout.data.sources.tables.schema import Types

MOST_JOINED = 1_000_000
"""Rows of a second file: they are kept with what was fitted."""


def derivation_of(asked: AskedColumns, table: Types, label: str, base_folder: str | os.PathLike[str] | None) -> Derivation:
    """RecipeError with every mistake. `label` may be one of the derived columns."""
    kinds = {name: kind for name, arrow in table.items() if (kind := kind_of(arrow)) is not None}
    mistakes: list[str] = []
    joins = [joined for one in asked.joins if (joined := _joined(one, kinds, base_folder, mistakes)) is not None]
    _check_names(asked, table, joins, mistakes)
    whole = Derivation(asked.derive, kinds, tuple(joins), {}, asked.time, asked.where)
    try:
        derived = whole.derived_kinds
    except RecipeError as error:
        mistakes += error.problems
        derived = {name: kind for one in joins for name, kind in one.kinds.items()} | dict.fromkeys(asked.derive, UNSURE)
        whole = Derivation({}, kinds, tuple(joins), {}, asked.time)
    every = {**kinds, **derived}
    for text in asked.where:
        tree, _, found = checked_expression("where", text, every.__getitem__, [*every], TRUTH)
        mistakes += found
        if tree is not None and (fitted := _fitted_below(tree, whole)):
            mistakes.append(f"where: {fitted} is fitted on the rows that `where` keeps, and can't choose them")
    mistakes += _label_mistakes(whole, label)
    mistakes += _time_mistakes(whole, every)
    if mistakes:
        raise RecipeError(mistakes, where="data")
    return _with_used_kinds(whole)


def kind_of(arrow: Any) -> str | None:
    """The kind of a column in expressions; None for lists and bytes."""
    import pyarrow as pa

    if pa.types.is_boolean(arrow):
        return TRUTH
    if is_number(arrow) or pa.types.is_null(arrow):
        return NUMBER
    if is_date(arrow) or pa.types.is_time(arrow):
        return DATE
    return None if is_nested(arrow) else TEXT


def arrow_types(kinds: Mapping[str, str]) -> Types:
    """The types of derived columns, for planning what is made of them."""
    import pyarrow as pa

    types = {NUMBER: pa.float64(), TRUTH: pa.bool_(), TEXT: pa.string(), DATE: pa.timestamp("us")}
    return {name: types[kind] for name, kind in kinds.items()}


def _with_used_kinds(whole: Derivation) -> Derivation:
    """Without the kinds of raw columns that no expression names: what is kept with a run says what it needs."""
    in_where = [name for tree in whole.conditions for name in columns_in(tree)]
    roots = [*whole.derived_kinds, *in_where, *([whole.time] if whole.time is not None else [])]
    used = whole.raw_columns(roots, fitted_inputs=True)
    kinds = {name: whole.kinds[name] for name in used if name in whole.kinds}
    return Derivation(whole.expressions, kinds, whole.joins, {}, whole.time, whole.where)


def _check_names(asked: AskedColumns, table: Types, joins: list[JoinedTable], mistakes: list[str]) -> None:
    joined: dict[str, str] = {}
    for one in joins:
        for name in one.kinds:
            other = "the table" if name in table else joined.get(name)
            if other is not None:
                mistakes.append(
                    f"join: {one.file} and {other} both have a column {name!r}: rename it, {{NEW: {name}}} in columns"
                )
            joined[name] = one.file
    for name in asked.derive:
        if name in table or name in joined:
            mistakes.append(
                f"derive: {name}: {joined.get(name, 'the table')} has a column {name!r} already: choose another name"
            )


def _label_mistakes(whole: Derivation, label: str) -> list[str]:
    """A column that is made of the label knows the answer; only a lag may look at the label, of earlier rows."""
    mistakes = []
    if label in whole.trees and (fitted := _fitted_below(whole.trees[label], whole)):
        mistakes.append(f"derive: {label}: the label is made of the row alone, and {fitted} is fitted on other rows")
    for name, tree in whole.trees.items():
        if name != label and (seen := _sees_label(tree, label)):
            remedy = (
                "; `steps: {COLUMN: [target_encode]}` gives means of the label without the row's own" if seen == "group" else ""
            )
            mistakes.append(f"derive: {name}: it is made of the label {label!r}, which new rows do not have{remedy}")
    for one in whole.joins:
        if label in one.on:
            mistakes.append(f"join: {label!r} is the label, which new rows do not have: join by another column")
    return mistakes


def _sees_label(tree: Expression, label: str) -> str:
    if _is_lag(tree):
        return next((seen for part in tree.by if (seen := _sees_label(part, label))), "")  # type: ignore[attr-defined]
    if isinstance(tree, NamedColumn) and tree.name == label:
        return "row"
    below = next((seen for part in tree.parts if (seen := _sees_label(part, label))), "")
    return "group" if below and is_fitted(tree) else below


def _time_mistakes(whole: Derivation, every: Mapping[str, str]) -> list[str]:
    lags = [name for name, tree in whole.trees.items() if any(_is_lag(node) for node in tree.walk())]
    if whole.time is None:
        return [f"derive: {name}: lags need the order of the rows: name a column, such as time: date" for name in lags]
    if whole.time not in every:
        return [f"time: no column {whole.time!r}; {did_you_mean(whole.time, every)}"]
    if every[whole.time] not in (DATE, NUMBER):
        told = WORDS[every[whole.time]]
        return [f"time: {whole.time!r} is {told}: expected a date or a number; a derived column with date(...) is one"]
    if whole.is_derived(whole.time) and _fitted_below(whole.trees.get(whole.time), whole):
        return [f"time: {whole.time!r} is fitted on the rows that it orders: name a column that is made of the row alone"]
    return []


def _is_lag(node: Expression) -> bool:
    return isinstance(node, FunctionCall) and is_fitted(node) and FUNCTIONS[node.name].fitted == LAGGED


def _fitted_below(tree: Expression | None, whole: Derivation) -> str:
    """The text of a fitted call in an expression, or in the columns that it is made of."""
    waiting, seen = [tree], set[str]()
    while waiting:
        one = waiting.pop()
        for node in () if one is None else one.walk():
            if isinstance(node, FunctionCall) and node.key:
                return f"`{node.key}`"
        for name in () if one is None else columns_in(one):
            if name not in seen:
                seen.add(name)
                waiting.append(whole.trees.get(name))
    return ""


def _joined(
    asked: AskedJoin, kinds: Mapping[str, str], base_folder: str | os.PathLike[str] | None, mistakes: list[str]
) -> JoinedTable | None:
    """The second file as a table by its key; None with a mistake."""
    before = len(mistakes)
    for name in asked.on:
        if name not in kinds:
            mistakes.append(f"join: on: the table has no column {name!r}; {did_you_mean(name, kinds)}")
    try:
        found = scan_files(find(asked.file, base_folder, "join", SUFFIXES), ReadOptions())
    except FlatoutError as error:
        mistakes.append(f"join: {error}")
        return None
    own = {name: kind for name, arrow in found.columns.items() if (kind := kind_of(arrow)) is not None}
    columns = asked.columns or {name: name for name in own if name not in asked.on.values()}
    for what, names in (("on", asked.on.values()), ("columns", columns.values())):
        for name in names:
            if name not in own:
                mistakes.append(f"join: {what}: {asked.file} has no column {name!r}; {did_you_mean(name, own)}")
    if len(mistakes) > before:
        return None
    for here, there in asked.on.items():
        if (kinds[here] == DATE) != (own[there] == DATE):
            mistakes.append(f"join: {here!r} is {WORDS[kinds[here]]} in the table and {WORDS[own[there]]} in {asked.file}")
    try:
        return _read(asked, found, own, columns)
    except DataError as error:
        mistakes.append(f"join: {error}")
        return None


def _read(asked: AskedJoin, found: Scan, own: Mapping[str, str], columns: Mapping[str, str]) -> JoinedTable:
    import pyarrow as pa

    theirs = list(dict.fromkeys([*asked.on.values(), *columns.values()]))
    batches, rows = [], 0
    for batch, _ in found.batches(theirs):
        batches.append(batch)
        rows += batch.num_rows
        if rows > MOST_JOINED:
            raise DataError(f"{asked.file} has more than {MOST_JOINED:,} rows, which are kept with the model: join fewer")
    whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    raw = Derivation(kinds=dict(own)).values(ArrowValues(whole))
    codes, keys = group_keys([raw.column(name) for name in asked.on.values()], rows)
    occurs = {key: 0 for key in keys}
    for code in codes.tolist():
        occurs[keys[code]] += 1
    if twice := [key for key, count in occurs.items() if count > 1]:
        shown = ", ".join(" and ".join(str(part) for part in key) for key in twice[:5])
        more = f" and {len(twice) - 5} more" if len(twice) > 5 else ""
        on = ", ".join(asked.on.values())
        raise DataError(f"{asked.file} has several rows for one {on}: {shown}{more}; a join needs one row for each")
    values = {new: _listed(raw.column(old)) for new, old in columns.items()}
    return JoinedTable(
        asked.file,
        tuple(asked.on),
        tuple(keys[code] for code in codes.tolist()),
        {new: own[old] for new, old in columns.items()},
        values,
    )


def _listed(column: DerivedColumn) -> list[Any]:
    missing = column.missing.tolist()
    if isinstance(column, DerivedNumbers):
        each: list[Any] = [bool(value) if column.truth and value == value else value for value in column.values.tolist()]
    elif isinstance(column, DerivedDates):
        each = column.instants.tolist()
    else:
        each = [column.texts[code] for code in column.codes.tolist()]
    return [None if gone else value for value, gone in zip(each, missing, strict=True)]
