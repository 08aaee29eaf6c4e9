"""Few points of a long curve: the lowest and the highest of each stretch, so that a spike of one point stays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def extremes(steps: NDArray[np.float64], values: NDArray[np.float64], stretches: int) -> NDArray[np.int64]:
    """Places in `values`, in rising order. `steps` never fall; all values are finite. The first and the last are among them."""
    if len(values) <= 2 * stretches:
        return np.arange(len(values), dtype=np.int64)
    stretch = _stretches(steps, stretches)
    begins = np.flatnonzero(np.diff(stretch, prepend=-1))
    sizes = np.diff(np.append(begins, len(values)))
    chosen = [np.array([0, len(values) - 1], dtype=np.int64)]
    for extreme in (np.minimum.reduceat(values, begins), np.maximum.reduceat(values, begins)):
        equal = np.flatnonzero(values == np.repeat(extreme, sizes))
        chosen.append(equal[np.diff(stretch[equal], prepend=-1) > 0])  # the first of each stretch
    return np.unique(np.concatenate(chosen)).astype(np.int64)


def one_each(steps: NDArray[np.float64], stretches: int) -> NDArray[np.int64]:
    """The place of the first step in each stretch."""
    if len(steps) <= stretches:
        return np.arange(len(steps), dtype=np.int64)
    return np.flatnonzero(np.diff(_stretches(steps, stretches), prepend=-1)).astype(np.int64)


def _stretches(steps: NDArray[np.float64], stretches: int) -> NDArray[np.int64]:
    """The number of each step's stretch."""
    span = steps[-1] - steps[0] or 1.0
    numbers: NDArray[np.int64] = np.minimum((steps - steps[0]) * (stretches / span), stretches - 1).astype(np.int64)
    return numbers
