"""An expression computed for a batch of rows, a whole column at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flatout.data.fitted.derived.derived_values import (
    NUMBER,
    DerivedColumn,
    DerivedDates,
    DerivedNumbers,
    DerivedTexts,
    nothing,
)
from flatout.data.fitted.derived.expressions import (
    DateLiteral,
    Expression,
    FunctionCall,
    ListLiteral,
    LiteralValue,
    NamedColumn,
)
from flatout.data.fitted.derived.functions import FUNCTIONS, OPERATORS, WRITTEN

ColumnOf = Callable[[str], DerivedColumn]
FittedOf = Callable[[FunctionCall], DerivedColumn]


def evaluated(node: Expression, column_of: ColumnOf, fitted_of: FittedOf) -> DerivedColumn:
    """The column, which may have one row if it is the same in all. `fitted_of` looks up what was fitted."""
    if isinstance(node, NamedColumn):
        return column_of(node.name)
    if isinstance(node, LiteralValue):
        return _constant(node.value, node.null_of)
    if isinstance(node, DateLiteral):
        return DerivedDates(np.array([node.instant]), np.zeros(1, np.bool_))
    assert isinstance(node, FunctionCall)
    if node.key:
        return fitted_of(node)
    function = FUNCTIONS.get(node.name) or OPERATORS[node.name]
    assert function.run is not None
    arguments: list[Any] = []
    for place, part in enumerate(node.arguments):
        if function.takes[min(place, len(function.takes) - 1)] in WRITTEN:
            arguments.append(_written(part))
        else:
            arguments.append(evaluated(part, column_of, fitted_of))
    result: DerivedColumn = function.run(*arguments)
    return result


def spread(column: DerivedColumn, rows: int) -> DerivedColumn:
    """With a value for each row."""
    if isinstance(column, DerivedNumbers):
        return DerivedNumbers(np.broadcast_to(column.values, rows), column.truth)
    if isinstance(column, DerivedTexts):
        return DerivedTexts(np.broadcast_to(column.codes, rows), column.texts)
    return DerivedDates(np.broadcast_to(column.instants, rows), np.broadcast_to(column.missing, rows))


def _constant(value: float | str | bool | None, null_of: str) -> DerivedColumn:
    if isinstance(value, str):
        return DerivedTexts(np.zeros(1, np.int64), [value])
    if value is None:
        return nothing(null_of or NUMBER, 1)
    return DerivedNumbers(np.array([float(value)]), isinstance(value, bool))


def _written(part: Expression) -> Any:
    if isinstance(part, ListLiteral):
        return [one.value for one in part.values]
    assert isinstance(part, LiteralValue)
    return part.value
