"""Fits a table: plans which columns are numbers, categories and dates, then fits them and the label in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.base.errors import DataError, UsageError
from flatout.data.fitted.codings import Codings, FoldMeans, Label
from flatout.data.fitted.table_features import TableFeatures
from flatout.data.fitted.values import Values
from flatout.data.order.keyed import keyed
from flatout.data.order.split import hash_batch
from flatout.data.sources.tables.arrow import ArrowValues, is_date, is_nested, is_number
from flatout.data.sources.tables.column_fits import CategoryFit, Context, Dropped, FittedColumn, NumberFit
from flatout.data.sources.tables.date_fits import DateFit
from flatout.data.sources.tables.quantiles import HashSample
from flatout.data.sources.tables.scan import check_column, listed
from flatout.data.sources.tables.steps import CATEGORY_STEPS, DATE_STEPS, NUMBER_STEPS, ColumnPlan, ColumnSteps
from flatout.data.sources.tables.targets import Folds, target_matrix

Array = np.ndarray[Any, Any]
Blocks = Callable[[], Iterator[Any]]

TARGETS = ("auto", "class", "number")
MOST_AUTO_CLASSES = 100
MOST_CLASSES = 100_000
_COARSE = 0.01  # of the deviation of a label: the most that float32 may round it by
_FITS: dict[str, type[NumberFit] | type[DateFit] | type[CategoryFit]] = {
    "number": NumberFit,
    "date": DateFit,
    "category": CategoryFit,
}
_STEPS_OF = {"number": NUMBER_STEPS, "category": CATEGORY_STEPS, "date": DATE_STEPS}


def plan_columns(
    types: Mapping[str, Any],
    *,
    numeric: str | Sequence[str],
    categorical: str | Sequence[str],
    aside: Iterable[str],
    steps: Mapping[str, ColumnSteps],
    usual: ColumnSteps,
    notes: list[str],
) -> list[ColumnPlan]:
    """The input columns in the order of the table. `aside` are columns that are not inputs: the label, dropped columns.

    A list in `numeric` or `categorical` names all columns of that kind. Columns that are in neither are left out, with a note.
    """
    aside = set(aside)
    numbers, categories = _names(numeric, "numeric"), _names(categorical, "categorical")
    for what, names in (("numeric", numbers or ()), ("categorical", categories or ()), ("steps", steps)):
        for name in names:
            check_column(name, types, what)
            if name in aside:
                raise UsageError(f"{what}: column {name!r} is not an input: it is the label, or it is in drop, split or draw")
    both = sorted(set(numbers or ()) & set(categories or ()))
    if both:
        raise UsageError(f"column {both[0]!r} is in both numeric and categorical: remove it from one of them")
    planned, left = [], []
    for name, kind in types.items():
        if name in aside:
            continue
        mine = steps.get(name, usual)
        found = _kind(name, kind, numbers, categories, mine)
        if found is None:
            left.append(name)
        else:
            _check_steps(name, found, mine)
            planned.append(ColumnPlan(name, found, mine, kind))
    if left:
        notes.append(f"left out: neither numeric nor categorical names them: {listed(left)}")
    return planned


def _names(given: str | Sequence[str], what: str) -> list[str] | None:
    if given == "auto":
        return None
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{what} is 'auto' or a list of columns, got {given!r}")
    return list(given)


def _kind(name: str, kind: Any, numbers: list[str] | None, categories: list[str] | None, steps: ColumnSteps) -> str | None:
    import pyarrow as pa

    by_steps = next((k for k, known in _STEPS_OF.items() if any(step in known for step in steps.named)), None)
    if name in (categories or ()) or (by_steps == "category" and name not in (numbers or ())):
        return _checked_category(name, kind)
    if by_steps == "date" and name not in (numbers or ()):
        return "date"
    if is_date(kind) or pa.types.is_time(kind):
        return "date" if numbers is None or name in numbers else None
    if name in (numbers or ()):
        if not (is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise DataError(
                f"numeric: column {name!r} holds text ({kind}): some value is not a number; "
                "if that value means 'missing', list it under na, else list the column under categorical"
            )
        return "number"
    if is_number(kind):
        return "number" if numbers is None else None
    if pa.types.is_null(kind):
        return "category" if categories is None else None
    return _checked_category(name, kind) if categories is None else None


def _checked_category(name: str, kind: Any) -> str:
    if is_nested(kind):
        raise DataError(
            f"column {name!r} is {kind}, and a table needs one number, text or date a row: leave the column out with drop"
        )
    return "category"


def _check_steps(name: str, kind: str, steps: ColumnSteps) -> None:
    for step in steps.named:
        if step not in _STEPS_OF[kind]:
            known = ", ".join(_STEPS_OF[kind])
            raise UsageError(f"steps of {name!r}: {step!r} does not apply to a column that is a {kind}; those that do: {known}")


@dataclass(frozen=True)
class TableFit:
    """`others` are the means for target-encoded training rows; `codings` has those for new rows."""

    codings: Codings
    features: TableFeatures
    label: Label
    others: FoldMeans
    notes: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class FitOptions:
    target: str = "auto"
    classes: int | None = None
    hash_buckets: int | None = None
    seed: int = 0
    inputs: Sequence[str] | None = None  # the raw columns, if some inputs are derived from them


def fit(
    blocks: Blocks,
    columns: Sequence[ColumnPlan],
    label: str,
    label_type: Any,
    options: FitOptions,
    values_of: Callable[[Any], Values] = ArrowValues,
) -> TableFit:
    """`blocks` starts a pass over the training rows, as record batches of even size; `values_of` adds the derived columns."""
    notes: list[str] = []
    folds = Folds(columns, options.seed, options.inputs) if any(_is_target_encoded(column) for column in columns) else None
    known = _fit_label_first(blocks, label, label_type, options, notes) if folds is not None else None
    labels = LabelFit(label, label_type, options.target)
    context = Context(known, options.hash_buckets)
    fits = [_FITS[column.kind](column, context) for column in columns]
    sampled = [one.name for one in fits if isinstance(one, NumberFit) and one.needs_quantiles]
    sample = HashSample(sampled) if sampled else None
    rows = 0
    for block in blocks():
        values = values_of(block)
        rows += values.rows
        if known is None:
            labels.add(block)
        folds_of = {} if folds is None else folds.of(block)
        y = None if known is None else target_matrix(known.encode(ArrowValues(block)), known.class_count)
        for column_fit in fits:
            column_fit.add(values, folds_of, y)
        if sample is not None:
            sample.add(hash_batch(block, keyed(options.seed, "sample")), [values.numbers(name) for name in sampled])
    known = labels.done(options.classes, notes) if known is None else known
    return _assembled(fits, sample, known, notes, rows)


def _is_target_encoded(column: ColumnPlan) -> bool:
    return column.kind == "category" and column.steps.category.target is not None


def _fit_label_first(blocks: Blocks, label: str, label_type: Any, options: FitOptions, notes: list[str]) -> Label:
    """A pass for the label alone: target encoding needs its classes."""
    first = LabelFit(label, label_type, options.target)
    for block in blocks():
        first.add(block)
    return first.done(options.classes, notes)


def _assembled(fits: Sequence[Any], sample: HashSample | None, label: Label, notes: list[str], rows: int) -> TableFit:
    dropped = Dropped()
    done: list[FittedColumn] = [found for column in fits if (found := column.done(sample, dropped)) is not None]
    notes = [*notes, *dropped.notes()]
    if not done:
        raise DataError("no column is left to learn from: " + ("; ".join(notes) or "the table has only the label"))
    codings = Codings(tuple(column.coding for column in done))
    features = TableFeatures([f for column in done for f in column.numbers], [f for column in done for f in column.categories])
    others = {column.coding.name: column.others for column in done if column.others is not None}
    return TableFit(codings, features, label, FoldMeans(others), tuple(notes), rows)


class LabelFit:
    """Fits the label on training rows. `target` is "class", "number" or "auto": a number for floats, and for more than 100
    distinct whole numbers; else classes."""

    def __init__(self, name: str, kind: Any, target: str) -> None:
        import pyarrow as pa

        if target not in TARGETS:
            raise UsageError(f"target is one of {', '.join(TARGETS)}, got {target!r}")
        self._name, self._kind, self._target = name, kind, target
        self._numbers = is_number(kind)
        self._whole = bool(pa.types.is_integer(kind))
        if target == "number" and not (self._numbers or pa.types.is_boolean(kind)):
            raise DataError(f"label {name!r} is {kind}, target='number' needs numbers; use target='class' for names")
        self._as_class = target == "class" or (target == "auto" and (self._whole or not self._numbers))
        self._counts: dict[str, int] = {}
        self._low, self._high, self._rows = np.inf, -np.inf, 0
        self._mean, self._squares = 0.0, 0.0  # of the rows so far, and the sum of squared distances from the mean

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
        """Merges a block as Chan, Golub and LeVeque do: exact also for numbers far from zero."""
        mean, count = float(numbers.mean()), len(numbers)
        apart, total = mean - self._mean, before + count
        self._squares += float(np.square(numbers - mean).sum()) + apart * apart * before * count / total
        self._mean += apart * count / total

    def done(self, classes: int | None, notes: list[str]) -> Label:
        if not self._rows:
            raise DataError("no row is left to train on")
        if not self._as_class:
            if classes is not None:
                raise DataError(f"classes={classes}, but label {self._name!r} is a number to predict: set target='class'")
            if not self._high > self._low and self._numbers:
                raise DataError(f"label {self._name!r} is {self._low:g} in all {self._rows} training rows: nothing to learn")
            if self._target == "auto" and len(self._counts) <= 20:
                notes.append(f"label {self._name!r} is a number to predict, with {len(self._counts)} distinct values: "
                             "set target='class' if they are classes")  # fmt: skip
            deviation = (self._squares / self._rows) ** 0.5
            step = float(np.spacing(np.float32(max(abs(self._low), abs(self._high)))))  # labels are stored in float32
            if deviation > 0 and step > _COARSE * deviation:
                raise DataError(
                    f"label {self._name!r} has the mean {self._mean:.6g} and the deviation {deviation:.3g}; the steps of "
                    f"float32 there, {step:.3g}, are too coarse: subtract a constant, such as the minimum, {self._low:.17g}"
                )
            return Label(self._name, None, self._mean, deviation) if deviation > 0 else Label(self._name, None)
        names = sorted(self._counts, key=float if self._numbers else str)
        if len(names) < 2:
            raise DataError(f"label {self._name!r} is {names[0]!r} in all {self._rows} training rows: nothing to learn")
        return Label(self._name, _with_absent(names, classes, self._name))


def _with_absent(names: list[str], classes: int | None, label: str) -> tuple[str, ...]:
    """The names of `classes` classes, more than the training rows have: possible if labels are numbers below `classes`."""
    if classes is None or classes == len(names):
        return tuple(names)
    if classes < len(names):
        raise DataError(f"classes={classes}, but label {label!r} has {len(names)}: {', '.join(names[:8])}")
    numbered = [str(place) for place in range(classes)]
    if set(names) <= set(numbered):
        return tuple(numbered)
    raise DataError(f"classes={classes}, but the training rows have {len(names)} values of {label!r}: {', '.join(names[:8])}; "
                    "leave classes out")  # fmt: skip
