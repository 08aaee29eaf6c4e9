"""Columns that give the label away: one of them alone scores higher than a model of all others does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flatout.base.units import show_count
from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.look import TableLook, coded, is_numeric, numbers_of

Array = np.ndarray[Any, Any]

_ALONE = {"class": 0.65, "number": 0.95}  # of what there is to explain: some numbers follow almost from one input
_OF_ERROR = 0.5  # the error of the column alone is less than this share of the error of all others together
FEW_ROWS_TO_LEARN = 60
MOST_CLASSES = 100
_MOST_BINS, _ROWS_A_BIN = 256, 8
_REST_ROWS, _REST_BINS, _MOST_REST_FEATURES = 6_000, 8, 600
_TAIL = 0.005  # of a label that is a number, at both ends: a few extreme rows would decide the score


def find_leaks(look: TableLook) -> Iterator[GuardFinding]:
    rows = look.spread
    if len(rows) < FEW_ROWS_TO_LEARN or (look.target == "class" and look.label.distinct > MOST_CLASSES):
        return
    targets = targets_of(look, rows)
    scores = {column.name: _alone(column, rows, targets) for column in look.inputs}
    tellers = [name for name, score in scores.items() if score >= _ALONE[look.target]]
    if not tellers:
        return
    others = [column for column in look.inputs if column.name not in tellers]
    rest = score_together(others, rows[:_REST_ROWS], targets[:_REST_ROWS])
    for name in tellers:
        if 1 - scores[name] > _OF_ERROR * (1 - rest):
            continue
        yield GuardFinding(
            "leak", name, scores[name],
            f"it alone explains {percent(scores[name])} of {look.label.name}, all other columns together "
            f"{percent(max(0.0, rest))} (measured on {show_count(len(rows))} rows)",
            "drop it if it is not known yet when you predict",
        )  # fmt: skip


def percent(share: float) -> str:
    return f"{share:.0%}" if share < 0.99 or share == 1 else f"{share:.1%}"


def targets_of(look: TableLook, rows: Array) -> Array:
    """float64 [rows, outputs]: one column for each class, or the number between its extreme values."""
    if look.target == "class":
        codes = np.unique(coded(look.label)[rows], return_inverse=True)[1].reshape(-1)
        return np.eye(int(codes.max()) + 1)[codes]
    numbers = numbers_of(look.label)[rows]
    finite = numbers[np.isfinite(numbers)]
    low, high = np.quantile(finite, [_TAIL, 1 - _TAIL]) if len(finite) else (0.0, 0.0)
    return np.clip(np.nan_to_num(numbers), low, high)[:, None] if high > low else np.nan_to_num(numbers)[:, None]


def _alone(column: SampledColumn, rows: Array, targets: Array) -> float:
    """The score of the mean target of each value (or interval of values), learned on one half and scored on the other."""
    half = len(rows) // 2
    values = values_of(column, rows, min(_MOST_BINS, max(4, half // _ROWS_A_BIN)))
    total = 0.0
    for learn, judge in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
        count = int(values.max()) + 1
        seen = np.bincount(values[learn], minlength=count)
        mean = targets[learn].mean(0)
        sums = np.stack([np.bincount(values[learn], targets[learn][:, out], count) for out in range(targets.shape[1])], 1)
        means = np.where(seen[:, None] > 0, sums / np.maximum(1, seen)[:, None], mean)
        total += score_of(means[values[judge]], targets[judge], mean)
    return total / 2


def values_of(column: SampledColumn, rows: Array, most: int) -> Array:
    """int64 [rows]: values, or intervals with equally many rows if a column of numbers has more than `most` values."""
    if is_numeric(column) and column.distinct > most:
        numbers = numbers_of(column)[rows]
        present = numbers[np.isfinite(numbers)]
        edges = np.unique(np.quantile(present, np.arange(1, most) / most)) if len(present) else np.zeros(0)
        return np.where(np.isnan(numbers), len(edges) + 1, np.searchsorted(edges, numbers, "right"))
    return np.unique(coded(column)[rows], return_inverse=True)[1].reshape(-1)


def score_of(predicted: Array, targets: Array, usual: Array) -> float:
    """The share of what the most frequent class, or the mean, leaves unexplained: of the errors, or of the variance."""
    if targets.shape[1] > 1:
        right = float((predicted.argmax(1) == targets.argmax(1)).mean())
        most = float((targets.argmax(1) == int(usual.argmax())).mean())
        return (right - most) / (1 - most) if most < 1 else 0.0
    spread = float(np.square(targets - usual).sum())
    return 1 - float(np.square(targets - predicted).sum()) / spread if spread else 0.0


def score_together(columns: Sequence[SampledColumn], rows: Array, targets: Array) -> float:
    """The score of a linear model of all these columns, each as a few intervals or its most frequent values."""
    if not columns:
        return 0.0
    features: list[Array] = [np.ones((len(rows), 1))]
    for column in columns:
        values = values_of(column, rows, _REST_BINS)
        frequent = np.bincount(values).argsort()[::-1][: 2 * _REST_BINS]
        features.append((values[:, None] == frequent[None, :]).astype(np.float64))
        if sum(feature.shape[1] for feature in features) > _MOST_REST_FEATURES:
            break
    x, half = np.concatenate(features, 1), len(rows) // 2
    gram = x[:half].T @ x[:half] + np.eye(x.shape[1])
    weights = np.linalg.solve(gram, x[:half].T @ targets[:half])
    return score_of(x[half:] @ weights, targets[half:], targets[:half].mean(0))
