"""What an expression gives for each row: numbers, truths, texts or dates, any of which may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.data.fitted.values import to_text

Array = np.ndarray[Any, Any]

NUMBER, TRUTH, TEXT, DATE, NULL = "number", "truth", "text", "date", "null"
KINDS = (NUMBER, TRUTH, TEXT, DATE)
WORDS = {NUMBER: "a number", TRUTH: "true or false", TEXT: "text", DATE: "a date", NULL: "null"}


@dataclass(frozen=True)
class DerivedNumbers:
    """float64; NaN is missing, and no value is infinite. Truths are numbers too: 1, 0, or missing."""

    values: Array
    truth: bool = False

    @property
    def kind(self) -> str:
        return TRUTH if self.truth else NUMBER

    @property
    def missing(self) -> Array:
        return np.asarray(np.isnan(self.values))


@dataclass(frozen=True)
class DerivedTexts:
    """int64 codes into a list of texts, in which None is the missing value; several codes may stand for one text."""

    codes: Array
    texts: Sequence[str | None]

    kind = TEXT

    @property
    def missing(self) -> Array:
        return np.array([text is None for text in self.texts], dtype=np.bool_)[self.codes]


@dataclass(frozen=True)
class DerivedDates:
    """int64 microseconds since 1970, with 0 where `missing`."""

    instants: Array
    missing: Array

    kind = DATE


DerivedColumn = DerivedNumbers | DerivedTexts | DerivedDates


def known(values: Array, truth: bool = False) -> DerivedNumbers:
    """What has no finite result has none: division by zero, the logarithm of zero, overflow."""
    finite = np.isfinite(values)
    return DerivedNumbers(values if finite.all() else np.where(finite, values, np.nan), truth)


def nothing(kind: str, rows: int) -> DerivedColumn:
    """A column of missing values."""
    if kind == TEXT:
        return DerivedTexts(np.zeros(rows, np.int64), [None])
    if kind == DATE:
        return DerivedDates(np.zeros(rows, np.int64), np.ones(rows, np.bool_))
    return DerivedNumbers(np.full(rows, np.nan), kind == TRUTH)


def chosen(where: Array, this: DerivedColumn, other: DerivedColumn) -> DerivedColumn:
    """`this` in the rows of a mask, `other` in the rest: two columns of one kind."""
    if isinstance(this, DerivedNumbers) and isinstance(other, DerivedNumbers):
        return DerivedNumbers(np.where(where, this.values, other.values), this.truth and other.truth)
    if isinstance(this, DerivedTexts) and isinstance(other, DerivedTexts):
        return DerivedTexts(np.where(where, this.codes, other.codes + len(this.texts)), [*this.texts, *other.texts])
    assert isinstance(this, DerivedDates) and isinstance(other, DerivedDates)
    return DerivedDates(np.where(where, this.instants, other.instants), np.where(where, this.missing, other.missing))


def keys_of(column: DerivedColumn) -> tuple[Array, list[str | None]]:
    """Codes into a list of keys, each once. 3, 3.0 and "3" are one key, as they are one category; None is the missing value."""
    if isinstance(column, DerivedTexts):
        places: dict[str | None, int] = {}
        renamed = np.array([places.setdefault(text, len(places)) for text in column.texts], dtype=np.int64)
        return renamed[column.codes], list(places)
    if isinstance(column, DerivedDates):
        instants, codes = np.unique(column.instants, return_inverse=True)
        keys: list[str | None] = [*map(str, instants.tolist()), None]
        return np.where(column.missing, len(instants), codes.reshape(-1)), keys
    numbers, codes = np.unique(column.values, return_inverse=True)
    return codes.reshape(-1).astype(np.int64), [_key(value, column.truth) for value in numbers.tolist()]


def _key(value: float, truth: bool) -> str | None:
    if value != value:
        return None
    return to_text(bool(value) if truth else value, "")
