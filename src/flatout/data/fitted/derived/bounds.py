"""What conditions need of single columns: comparisons with a constant.

Such a comparison fails for all values of a range if it fails for the smallest and for the largest of them, so the two ends
alone may show that no row of a block passes. Everything else (`or`, `!=`, several columns) shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flatout.data.fitted.derived.asked import columns_in
from flatout.data.fitted.derived.derivation import Derivation
from flatout.data.fitted.derived.derived_values import DATE, NUMBER, DerivedNumbers
from flatout.data.fitted.derived.expressions import Expression, FunctionCall, NamedColumn
from flatout.data.fitted.values import Values

Bound = tuple[str, Expression]
"""A raw column, and a comparison of it that every row has to pass."""

_ORDERED = ("<", "<=", ">", ">=")


def bounds_of(derivation: Derivation) -> list[Bound]:
    return [bound for condition in derivation.conditions for bound in _bounds(condition, derivation)]


def rules_out(derivation: Derivation, bound: Bound, ends: Values) -> bool:
    """`ends` has two rows: the smallest and the largest value of the column."""
    passed = derivation.values(ends).computed(bound[1])
    assert isinstance(passed, DerivedNumbers)
    return not (passed.values == 1).any()


def _bounds(tree: Expression, derivation: Derivation) -> Iterator[Bound]:
    if not isinstance(tree, FunctionCall):
        return
    if tree.name == "and":
        for part in tree.arguments:
            yield from _bounds(part, derivation)
    elif tree.name == "==":
        for name in ("<=", ">="):
            yield from _bounds(replace(tree, name=name), derivation)
    elif tree.name in _ORDERED:
        columns = [part.name for part in tree.arguments if isinstance(part, NamedColumn)]
        if len(columns) == 1 and [*columns_in(tree)] == columns and derivation.kinds.get(columns[0]) in (NUMBER, DATE):
            yield columns[0], tree
