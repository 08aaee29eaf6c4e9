"""Columns that give the label away only together: a sum and its other part, or two keys that differ where the answer is yes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np

from flatout.base.units import show_count
from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.leaks import (
    FEW_ROWS_TO_LEARN,
    MOST_CLASSES,
    percent,
    score_of,
    score_together,
    targets_of,
    values_of,
)
from flatout.explore.guard.look import TableLook, is_numeric, numbers_of

Array = np.ndarray[Any, Any]

_ROWS = 4_000
_MOST_PAIRS = 1_000
_BINS = 6
_PAIR = 0.8  # of what there is to explain
_OF_ERROR = 0.4  # of the error of all columns one by one
_EXACT = 0.9995  # of the variance, by a sum of columns
_MOST_NUMBERS = 60
_MOST_PARTS = 4
_SAME = 1e-6  # of the spread of a column is left by the others: it adds nothing


def find_leaks_together(look: TableLook) -> Iterator[GuardFinding]:
    """Nothing if one column does it alone: `find_leaks` names that one."""
    rows = look.spread[:_ROWS]
    if len(rows) < FEW_ROWS_TO_LEARN:
        return
    if look.target == "number":
        yield from _sums(look, rows)
    elif look.label.distinct <= MOST_CLASSES:
        yield from _pairs(look, rows)


def _pairs(look: TableLook, rows: Array) -> Iterator[GuardFinding]:
    columns = [column for column in look.inputs if column.distinct > 1]
    if len(columns) * (len(columns) - 1) // 2 > _MOST_PAIRS:
        return
    targets, half = targets_of(look, rows), len(rows) // 2
    codes = {column.name: _few(column, rows) for column in columns}
    scores = {}
    for one, other in combinations(codes, 2):
        cells = codes[one] * (codes[other].max() + 1) + codes[other]
        scores[one, other] = _by_cell(cells, targets, half)
    if not scores:
        return
    (one, other), best = max(scores.items(), key=lambda pair: pair[1])
    rest = score_together(columns, rows, targets)
    if best >= _PAIR and 1 - best <= _OF_ERROR * (1 - rest):
        yield _finding(look, [one, other], best, rest, len(rows))


def _few(column: SampledColumn, rows: Array) -> Array:
    """The most frequent values, or intervals, and one number for all others."""
    values = values_of(column, rows, _BINS)
    frequent = np.bincount(values).argsort()[::-1][:_BINS]
    place = np.full(int(values.max()) + 1, len(frequent))
    place[frequent] = np.arange(len(frequent))
    found: Array = place[values]
    return found


def _by_cell(cells: Array, targets: Array, half: int) -> float:
    count = int(cells.max()) + 1
    seen = np.bincount(cells[:half], minlength=count)
    mean = targets[:half].mean(0)
    sums = np.stack([np.bincount(cells[:half], one[:half], count) for one in targets.T], 1)
    means = np.where(seen[:, None] > 0, sums / np.maximum(1, seen)[:, None], mean)
    return score_of(means[cells[half:]], targets[half:], mean)


def _sums(look: TableLook, rows: Array) -> Iterator[GuardFinding]:
    """The label as a sum of columns, each times a number. A column whose values are all in the others is not needed."""
    columns = [column for column in look.inputs if is_numeric(column) and column.distinct > 1][:_MOST_NUMBERS]
    if len(columns) < 2:
        return
    x = np.stack([_standard(numbers_of(column)[rows]) for column in columns], 1)
    y = _standard(numbers_of(look.label)[rows])
    kept = list(range(len(columns)))
    if _left(x, y) > 1 - _EXACT:
        return
    for place in sorted(kept, key=lambda at: abs(float(x[:, at] @ y))):  # the least related go first
        fewer = [one for one in kept if one != place]
        if fewer and _left(x[:, fewer], y) <= 1 - _EXACT:
            kept = fewer
    if not 2 <= len(kept) <= _MOST_PARTS:
        return
    left = _left(x[:, kept], y)
    names = [columns[place].name for place in kept]
    others = [column for column in look.inputs if column.name not in names]
    targets = targets_of(look, rows)
    yield _finding(look, names, 1 - left, score_together(others, rows, targets), len(rows))


def _standard(numbers: Array) -> Array:
    """Mean 0 and deviation 1; what is missing is 0, as a network sees it."""
    finite = np.isfinite(numbers)
    mean, deviation = (numbers[finite].mean(), numbers[finite].std()) if finite.any() else (0.0, 0.0)
    found: Array = np.where(finite, numbers - mean, 0.0) / (deviation or 1.0)
    return found


def _left(x: Array, y: Array) -> float:
    """The share of the variance that a linear model leaves."""
    weights = np.linalg.lstsq(x, y, rcond=_SAME)[0]
    spread = float(y @ y)
    return float(np.square(y - x @ weights).sum()) / spread if spread else 1.0


def _finding(look: TableLook, names: list[str], score: float, rest: float, rows: int) -> GuardFinding:
    both = " and ".join([", ".join(names[:-1]), names[-1]])
    return GuardFinding(
        "leak", names[0], score,
        f"{both} together explain {percent(score)} of {look.label.name}, all other ways to use the columns "
        f"{percent(max(0.0, rest))} (measured on {show_count(rows)} rows)",
        "drop one of them if both are not known yet when you predict",
    )  # fmt: skip
