"""Functions of texts, each computed once for every distinct text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flatout.data.fitted.dates import to_instant
from flatout.data.fitted.derived.derived_values import DerivedDates, DerivedNumbers, DerivedTexts


def to_numbers(measure: Callable[..., float], truth: bool = False) -> Callable[..., DerivedNumbers]:
    """`measure` of each text that is not missing."""

    def run(column: DerivedTexts, *more: Any) -> DerivedNumbers:
        each = [math.nan if text is None else float(measure(text, *more)) for text in column.texts]
        return DerivedNumbers(np.array(each, dtype=np.float64)[column.codes], truth)

    return run


def to_texts(change: Callable[[str], str]) -> Callable[[DerivedTexts], DerivedTexts]:
    return lambda column: DerivedTexts(column.codes, [None if text is None else change(text) for text in column.texts])


def word_count(text: str) -> int:
    return len(text.split())


def number_in(text: str) -> float:
    """The number that a text is; NaN for any other text."""
    try:
        number = float(text) if "_" not in text else math.nan
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def date_in(column: DerivedTexts, format: str | None = None) -> DerivedDates:
    """ISO 8601, or a format of strptime. A text that is no date is missing."""
    each = [_instant(text, format) for text in column.texts]
    missing = np.array([instant is None for instant in each], dtype=np.bool_)[column.codes]
    return DerivedDates(np.array([instant or 0 for instant in each], dtype=np.int64)[column.codes], missing)


def _instant(text: str | None, format: str | None) -> int | None:
    try:
        return to_instant(text, format)
    except (ValueError, TypeError, OverflowError):
        return None
