"""A category as the mean of the target, with no row's own target in what the model is trained on.

Training rows are in folds by the hash of their features, so alike rows share a fold; each gets the means over the other folds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.data.fitted.codings import Category, TargetEncoding
from flatout.data.sources.tables.statistics import Moments

Array = np.ndarray[Any, Any]


def target_coding(
    category: Category, rows: Array, sums: Array, smoothing: float, suffixes: tuple[str, ...]
) -> tuple[TargetEncoding, Array, list[Moments]]:
    """From counts [ids, folds] and sums [ids, folds, outputs]: the coding for rows not trained on, the means for those
    that were [ids, folds, outputs], and the moments of these over the training rows."""
    every = _smoothed(rows.sum(1), sums.sum(1), smoothing)
    others = np.stack(
        [_smoothed(rows.sum(1) - rows[:, f], sums.sum(1) - sums[:, f], smoothing) for f in range(rows.shape[1])], axis=1
    )
    moments = []
    for output in range(sums.shape[2]):
        one = Moments()
        one.add(others[:, :, output].ravel(), rows.ravel())
        moments.append(one)
    return TargetEncoding(category.name, category, tuple(tuple(row) for row in every.tolist()), suffixes), others, moments


def target_matrix(y: Array, classes: int | None) -> Array:
    """What is averaged, float64 [rows, outputs]: the number, whether it is the second of two classes, or a column a class."""
    if classes is None:
        return y.astype(np.float64)[:, None]
    if classes == 2:
        return np.asarray(y == 1, dtype=np.float64)[:, None]
    return np.asarray(y[:, None] == np.arange(classes), dtype=np.float64)


def _smoothed(rows: Array, sums: Array, smoothing: float) -> Array:
    """[ids], [ids, outputs] -> means [ids, outputs], drawn to the mean of all rows where a category has few."""
    prior = sums.sum(0) / max(int(rows.sum()), 1)
    weight = rows[:, None] + smoothing
    return np.asarray(np.where(weight > 0, (sums + smoothing * prior) / np.where(weight > 0, weight, 1), prior))
