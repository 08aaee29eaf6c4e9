"""Arithmetic, comparisons and logic of whole columns. A missing value makes a result missing, unless it is known anyway.

false and null is false, true or null is true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from flatout.data.fitted.derived.derived_values import (
    Array,
    DerivedColumn,
    DerivedDates,
    DerivedNumbers,
    DerivedTexts,
    chosen,
    keys_of,
    known,
    nothing,
)

_LARGEST_DIGITS = 15


def of_numbers(compute: Callable[..., Array]) -> Callable[..., DerivedNumbers]:
    """A function of arrays as one of columns; what it can't compute is missing."""

    def run(*columns: DerivedNumbers) -> DerivedNumbers:
        with np.errstate(all="ignore"):
            return known(np.asarray(compute(*(column.values for column in columns)), dtype=np.float64))

    return run


def rounded(column: DerivedNumbers, digits: float = 0.0) -> DerivedNumbers:
    """Halves to the even neighbour, as NumPy and pandas do."""
    with np.errstate(all="ignore"):
        return known(np.round(column.values, int(max(-_LARGEST_DIGITS, min(_LARGEST_DIGITS, digits)))))


def least(*columns: DerivedNumbers) -> DerivedNumbers:
    return known(reduce(np.minimum, [column.values for column in columns]))


def greatest(*columns: DerivedNumbers) -> DerivedNumbers:
    return known(reduce(np.maximum, [column.values for column in columns]))


def clipped(column: DerivedNumbers, low: DerivedNumbers, high: DerivedNumbers) -> DerivedNumbers:
    return known(np.minimum(np.maximum(column.values, low.values), high.values))


def both(a: DerivedNumbers, b: DerivedNumbers) -> DerivedNumbers:
    result = np.where(a.missing | b.missing, np.nan, a.values * b.values)
    return DerivedNumbers(np.where((a.values == 0) | (b.values == 0), 0.0, result), truth=True)


def either(a: DerivedNumbers, b: DerivedNumbers) -> DerivedNumbers:
    result = np.where(a.missing | b.missing, np.nan, np.maximum(a.values, b.values))
    return DerivedNumbers(np.where((a.values == 1) | (b.values == 1), 1.0, result), truth=True)


def opposite(a: DerivedNumbers) -> DerivedNumbers:
    return DerivedNumbers(1.0 - a.values, truth=True)


def is_missing(column: DerivedColumn) -> DerivedNumbers:
    return DerivedNumbers(column.missing.astype(np.float64), truth=True)


def compared(compare: Callable[[Array, Array], Array]) -> Callable[[DerivedColumn, DerivedColumn], DerivedNumbers]:
    """Of two numbers, two dates, or two texts (which are only equal or not)."""

    def run(a: DerivedColumn, b: DerivedColumn) -> DerivedNumbers:
        left, right = _comparable(a, b)
        return DerivedNumbers(np.where(a.missing | b.missing, np.nan, compare(left, right)), truth=True)

    return run


def _comparable(a: DerivedColumn, b: DerivedColumn) -> tuple[Array, Array]:
    if isinstance(a, DerivedNumbers) and isinstance(b, DerivedNumbers):
        return a.values, b.values
    if isinstance(a, DerivedDates) and isinstance(b, DerivedDates):
        return a.instants, b.instants
    assert isinstance(a, DerivedTexts) and isinstance(b, DerivedTexts)
    places: dict[str | None, int] = {}
    each = [np.array([places.setdefault(text, len(places)) for text in one.texts], dtype=np.int64) for one in (a, b)]
    return each[0][a.codes], each[1][b.codes]


def among(column: DerivedColumn, listed: Sequence[Any]) -> DerivedNumbers:
    """Whether the value is one of a list; missing stays missing."""
    if isinstance(column, DerivedTexts):
        wanted = frozenset(listed)
        found = np.array([text in wanted for text in column.texts], dtype=np.float64)[column.codes]
    elif isinstance(column, DerivedDates):
        found = np.isin(column.instants, np.array(listed, dtype=np.int64)).astype(np.float64)
    else:
        found = np.isin(column.values, np.array(listed, dtype=np.float64)).astype(np.float64)
    return DerivedNumbers(np.where(column.missing, np.nan, found), truth=True)


def if_else(condition: DerivedNumbers, then: DerivedColumn, otherwise: DerivedColumn) -> DerivedColumn:
    """Missing where it is not known whether the condition holds."""
    result = chosen(condition.values == 1, then, otherwise)
    unknown = condition.missing
    return chosen(unknown, nothing(result.kind, len(unknown)), result) if unknown.any() else result


def filled(*columns: DerivedColumn) -> DerivedColumn:
    """The first value that is not missing."""
    result = columns[0]
    for other in columns[1:]:
        if not (gone := result.missing).any():
            break
        result = chosen(gone, other, result)
    return result


def binned(column: DerivedNumbers, edges: Sequence[float]) -> DerivedNumbers:
    """The number of edges that are not above the value: 0 below the first edge."""
    places = np.searchsorted(np.array(edges, dtype=np.float64), column.values, side="right").astype(np.float64)
    return DerivedNumbers(np.where(column.missing, np.nan, places))


def crossed(a: DerivedTexts, b: DerivedTexts) -> DerivedTexts:
    """a + b of texts, made once for each pair that occurs."""
    pairs, codes = np.unique(a.codes * len(b.texts) + b.codes, return_inverse=True)
    first, second = np.divmod(pairs, len(b.texts))
    texts = [_joined(a.texts[i], b.texts[j]) for i, j in zip(first.tolist(), second.tolist(), strict=True)]
    return DerivedTexts(codes.reshape(-1), texts)


def _joined(a: str | None, b: str | None) -> str | None:
    return None if a is None or b is None else a + b


def added(a: DerivedColumn, b: DerivedColumn) -> DerivedColumn:
    if isinstance(a, DerivedTexts) and isinstance(b, DerivedTexts):
        return crossed(a, b)
    assert isinstance(a, DerivedNumbers) and isinstance(b, DerivedNumbers)
    return of_numbers(np.add)(a, b)


def as_text(column: DerivedColumn) -> DerivedTexts:
    """As the same value is written as a category: 3 and 3.0 are "3"."""
    if isinstance(column, DerivedDates):
        written = column.instants.astype("datetime64[us]")
        moments, codes = np.unique(written, return_inverse=True)
        texts: list[str | None] = [*(moment.isoformat() for moment in moments.tolist()), None]
        return DerivedTexts(np.where(column.missing, len(moments), codes.reshape(-1)), texts)
    return DerivedTexts(*keys_of(column))
