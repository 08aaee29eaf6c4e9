"""Target encoding: a category becomes the mean of the target over its rows, without the target of the row itself.

Training rows are split into folds by the hash of their inputs, so equal rows share a fold. Each row gets the means over the
other folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flatout.data.fitted.codings import Category, Label, TargetEncoding
from flatout.data.order.keyed import keyed
from flatout.data.order.split import hash_batch
from flatout.data.sources.tables.steps import ColumnPlan

Array = np.ndarray[Any, Any]


class Folds:
    """The fold of each row for each target-encoded column, by the hash of the inputs of the row."""

    def __init__(self, columns: Sequence[ColumnPlan], seed: int, inputs: Sequence[str] | None = None) -> None:
        """`inputs` are the raw columns, if some of `columns` are derived from them."""
        targets = {c.name: c.steps.category.target for c in columns if c.kind == "category"}
        self._counts = {name: target.folds for name, target in targets.items() if target is not None}
        self._inputs = [column.name for column in columns] if inputs is None else list(inputs)
        self._seed = keyed(seed, "folds")

    def of(self, batch: Any) -> dict[str, Array]:
        hashes = hash_batch(batch, self._seed, self._inputs)
        return {name: (hashes % np.uint64(count)).astype(np.int64) for name, count in self._counts.items()}


def target_coding(
    category: Category, rows: Array, sums: Array, smoothing: float, suffixes: tuple[str, ...]
) -> tuple[TargetEncoding, Array]:
    """From counts [ids, folds] and sums [ids, folds, outputs]: the coding for new rows, and the means for training rows,
    [ids, folds, outputs]."""
    every = _smoothed(rows.sum(1), sums.sum(1), smoothing)
    others = np.stack(
        [_smoothed(rows.sum(1) - rows[:, f], sums.sum(1) - sums[:, f], smoothing) for f in range(rows.shape[1])], axis=1
    )
    return TargetEncoding(category.name, category, tuple(tuple(row) for row in every.tolist()), suffixes), others


def target_matrix(y: Array, classes: int | None) -> Array:
    """The targets to average, float64 [rows, outputs]: the number, 1 for the second of two classes, or one column a class."""
    if classes is None:
        return y.astype(np.float64)[:, None]
    if classes == 2:
        return np.asarray(y == 1, dtype=np.float64)[:, None]
    return np.asarray(y[:, None] == np.arange(classes), dtype=np.float64)


def _smoothed(rows: Array, sums: Array, smoothing: float) -> Array:
    """[ids], [ids, outputs] -> means [ids, outputs]. A category with few rows is pulled towards the mean of all rows."""
    prior = sums.sum(0) / max(int(rows.sum()), 1)
    weight = rows[:, None] + smoothing
    return np.asarray(np.where(weight > 0, (sums + smoothing * prior) / np.where(weight > 0, weight, 1), prior))


def target_suffixes(label: Label) -> tuple[str, ...]:
    """Suffixes of the columns of a target encoding: one column, or one for each class if there are more than two."""
    return ("",) if label.classes is None or len(label.classes) == 2 else tuple(f"={name}" for name in label.classes)
