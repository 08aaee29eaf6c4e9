"""Fits the label of a table: classes, with their names, or a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flatout.base.errors import DataError, UsageError
from flatout.data.fitted.codings import LARGEST
from flatout.data.fitted.label import Label
from flatout.data.sources.tables.arrow import ArrowValues, is_number

Array = np.ndarray[Any, Any]

TARGETS = ("auto", "class", "number")
MOST_AUTO_CLASSES = 100
MOST_CLASSES = 100_000
_COARSE = 0.01  # of a label's deviation: as far as float32 may round it


class LabelFit:
    """Collects the label of training rows. `target` is "class", "number" or "auto": floats, and more than 100 distinct whole
    numbers, are a number to predict."""

    def __init__(self, name: str, kind: Any, target: str) -> None:
        import pyarrow as pa

        if target not in TARGETS:
            raise UsageError(f"target is one of {', '.join(TARGETS)}, got {target!r}")
        self._name, self._kind, self._target = name, kind, target
        self._numbers = is_number(kind)
        self._whole = bool(pa.types.is_integer(kind))
        if target == "number" and not (self._numbers or pa.types.is_boolean(kind)):
            raise DataError(f"label {name!r} is {kind}, and target='number' needs numbers; use target='class' for names")
        self._as_class = target == "class" or (target == "auto" and (self._whole or not self._numbers))
        self._counts: dict[str, int] = {}
        self._low, self._high, self._rows = np.inf, -np.inf, 0
        self._mean, self._squares = 0.0, 0.0  # of the rows so far, and their squared distances from it

    def add(self, batch: Any) -> None:
        values = ArrowValues(batch)
        before, self._rows = self._rows, self._rows + values.rows
        if not values.rows:
            return
        if self._numbers:
            numbers = values.numbers(self._name)
            self._low, self._high = min(self._low, float(numbers.min())), max(self._high, float(numbers.max()))
            self._spread_of(numbers.astype(np.float64), before)
        if self._target == "number":
            return
        if not self._as_class and len(self._counts) > MOST_AUTO_CLASSES:
            return
        codes, texts = values.texts(self._name)
        for text, count in zip(texts, np.bincount(codes, minlength=len(texts)).tolist(), strict=True):
            if text is not None and count:
                self._counts[text] = self._counts.get(text, 0) + count
        if self._as_class and self._target == "auto" and self._whole and len(self._counts) > MOST_AUTO_CLASSES:
            self._as_class = False
        if self._as_class and len(self._counts) > MOST_CLASSES:
            raise DataError(f"label {self._name!r} has more than {MOST_CLASSES} distinct values: is that the label?")

    def _spread_of(self, numbers: Array, before: int) -> None:
        """Block by block, as Chan, Golub and LeVeque merge two parts: exact also for numbers far from zero."""
        mean, count = float(numbers.mean()), len(numbers)
        apart, total = mean - self._mean, before + count
        self._squares += float(np.square(numbers - mean).sum()) + apart * apart * before * count / total
        self._mean += apart * count / total

    def done(self, classes: int | None, notes: list[str]) -> Label:
        if not self._rows:
            raise DataError("no row is left to train on")
        if not self._as_class:
            if classes is not None:
                raise DataError(f"classes={classes}, and label {self._name!r} is a number to predict: say target='class'")
            if not self._high > self._low and self._numbers:
                raise DataError(f"label {self._name!r} is {self._low:g} in all {self._rows} training rows: nothing to learn")
            if self._target == "auto" and len(self._counts) <= 20:
                notes.append(f"label {self._name!r} is a number to predict; it has {len(self._counts)} distinct values: "
                             "say target='class' if they are classes")  # fmt: skip
            deviation = (self._squares / self._rows) ** 0.5
            step = float(np.spacing(np.float32(max(abs(self._low), abs(self._high)))))  # labels are kept in float32
            if deviation > 0 and step > _COARSE * deviation:
                raise DataError(
                    f"label {self._name!r} is about {self._mean:.6g} and differs by {deviation:.3g} from row to row, where "
                    f"float32 has steps of {step:.3g}: take a constant off it, such as its smallest value, {self._low:.17g}"
                )
            return Label(self._name, None, self._mean, deviation) if deviation > 0 else Label(self._name, None)
        names = sorted(self._counts, key=float if self._numbers else str)
        if len(names) < 2:
            raise DataError(f"label {self._name!r} is {names[0]!r} in all {self._rows} training rows: nothing to learn")
        return Label(self._name, _with_absent(names, classes, self._name))


def _with_absent(names: list[str], classes: int | None, label: str) -> tuple[str, ...]:
    """`classes` more than are there: whole numbers below it are ids as they stand, whatever else came gets the first ids."""
    if classes is None or classes == len(names):
        return tuple(names)
    if classes < len(names):
        raise DataError(f"classes={classes}, and label {label!r} has {len(names)}: {', '.join(names[:8])}")
    numbered = [str(place) for place in range(classes)]
    if set(names) <= set(numbered):
        return tuple(numbered)
    raise DataError(f"classes={classes}, and the training rows have {len(names)} values of {label!r}: {', '.join(names[:8])}; "
                    "leave classes out")  # fmt: skip


def bad_labels(batch: Any, name: str) -> tuple[Array, Callable[[int], str]]:
    """Where the label can't be used, whatever the classes turn out to be, and why a row's can't."""
    values = ArrowValues(batch)
    column = batch.column(batch.schema.names.index(name))
    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
    if not is_number(column.type):
        return missing, lambda row: f"the label {name!r} is missing"
    numbers = values.numbers(name)
    with np.errstate(invalid="ignore"):
        bad = missing | ~(np.abs(numbers) <= LARGEST)

    def why(row: int) -> str:
        if missing[row]:
            return f"the label {name!r} is missing"
        beyond = "more than float32 can hold" if np.isfinite(numbers[row]) else "not finite"
        return f"the label {name!r} is {numbers[row]:g}, {beyond}"

    return bad, why
