"""Area under the ROC curve and average precision, exact: only the ranks of positives are needed, and ties share theirs.

On a CPU each column is sorted with NumPy, several times as fast as torch there, on as many threads as torch has: NumPy's sort
lets other threads run. Other devices take all columns at once, without waiting for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]
_MOST_CELLS = 1 << 24  # on a device at once
_FEWEST_CELLS = 1 << 18  # on a CPU, for more than one thread
_LINES = 512  # rows that are transposed at once, while a CPU's cache holds them
_MANY_POSITIVES = 0.05  # share from which sorting labels along with the scores is faster than searching for the positives


def areas_under_curve(scores: Tensor, labels: Tensor) -> Tensor:
    """float64 [columns], for scores [rows, columns] and true or false of the same shape, or the class of each row. NaN if a
    column has only one class, or a NaN among its scores."""
    return _each(scores, labels, _auroc_here, _auroc_there)


def average_precisions(scores: Tensor, labels: Tensor) -> Tensor:
    """float64 [columns]: the mean over positives of the precision among all rows that score at least as high. NaN without
    positives, or with a NaN among the scores."""
    return _each(scores, labels, _precision_here, _precision_there)


Here = Callable[[Array, Array], float]
There = Callable[[Tensor, Tensor], Tensor]


def _each(scores: Tensor, labels: Tensor, here: Here, there: There) -> Tensor:
    if scores.device.type == "cpu":
        each, marks = _by_column(scores.numpy()), labels.numpy()
        of_each = _by_column(marks) if labels.dim() > 1 else None

        def area(place: int) -> float:
            return here(each[place] + 0, marks == place if of_each is None else of_each[place] != 0)  # 0.0 and -0.0 are equal

        threads = min(torch.get_num_threads(), len(each)) if scores.numel() >= _FEWEST_CELLS else 1
        if threads == 1:
            return torch.tensor([area(place) for place in range(len(each))], dtype=torch.float64)
        with ThreadPoolExecutor(threads) as pool:
            return torch.tensor(list(pool.map(area, range(len(each)))), dtype=torch.float64)
    at_once = max(1, _MOST_CELLS // max(1, len(scores)))
    parts = []
    for first in range(0, scores.shape[1], at_once):
        some = scores[:, first : first + at_once].t().contiguous()
        if labels.dim() > 1:
            positive = labels[:, first : first + at_once].t() != 0
        else:
            positive = torch.arange(first, first + len(some), device=labels.device)[:, None] == labels
        parts.append(torch.where(some.isnan().any(1), math.nan, there(some, positive)))
    return torch.cat(parts)


# ---- on a CPU ----


def _by_column(rows: Array) -> Array:
    if rows.shape[1] == 1:
        return rows.reshape(1, -1)
    made = np.empty(rows.shape[::-1], rows.dtype)
    for first in range(0, len(rows), _LINES):
        made[:, first : first + _LINES] = rows[first : first + _LINES].T
    return made


def _ranks(scores: Array, positive: Array) -> tuple[Array, Array, Array] | None:
    """Of the positives in ascending order: the number of rows below, of those not above, and the scores. None if NaN."""
    ordered = np.sort(scores)
    if not len(ordered) or np.isnan(ordered[-1]):
        return None
    hits = np.sort(scores[positive])
    below = np.searchsorted(ordered, hits)
    up_to = below + 1
    tied = np.flatnonzero(ordered[np.minimum(up_to, len(ordered) - 1)] == hits)
    up_to[tied] = np.searchsorted(ordered, hits[tied], "right")
    return below, up_to, hits


def _auroc_here(scores: Array, positive: Array) -> float:
    hits = int(np.count_nonzero(positive))
    if scores.dtype == np.float32 and hits > _MANY_POSITIVES * len(scores):
        ranks = None if np.isnan(scores).any() else _rank_sum_of_many(scores, positive)
    else:
        found = _ranks(scores, positive)
        ranks = None if found is None else int(found[0].sum()) + int(found[1].sum())
    pairs = hits * (len(scores) - hits)
    if ranks is None or not pairs:
        return math.nan
    return (ranks - hits**2) / (2 * pairs)  # a positive beats half of its ties, itself among them


def _rank_sum_of_many(scores: Array, positive: Array) -> int:
    """The sum over positives of the number of rows below and of those not above, by one sort of integers. They have the order
    of the scores, and the label as their last bit."""
    bits = scores.view(np.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) * 2 + positive
    keys.sort()
    hit, places = keys & 1, np.arange(1, 2 * len(keys), 2)  # the sum for the row at a place, were there no ties
    keys >>= 1
    ranks = int(np.dot(hit, places))
    tied = np.flatnonzero(keys[1:] == keys[:-1])
    if not len(tied):
        return ranks
    first = np.concatenate([[True], tied[1:] != tied[:-1] + 1])  # of each group of ties
    begins, ends = tied[first], tied[np.concatenate([first[1:], [True]])] + 2
    of_group = np.add.reduceat(np.append(hit, 0), np.stack([begins, ends], 1).ravel())[::2]
    own = np.add.reduceat(np.append(hit * places, 0), np.stack([begins, ends], 1).ravel())[::2]
    return ranks + int((of_group * (begins + ends)).sum()) - int(own.sum())


def _precision_here(scores: Array, positive: Array) -> float:
    found = _ranks(scores, positive)
    if found is None or not len(found[2]):
        return math.nan
    below, _, hits = found
    hits_below = np.arange(len(hits))
    same = np.concatenate([[False], hits[1:] == hits[:-1]])
    if same.any():
        hits_below = np.maximum.accumulate(np.where(same, 0, hits_below))
    return float(((len(hits) - hits_below) / (len(scores) - below)).mean())


# ---- on other devices ----


def _ties(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """In ascending order, for each column: what is positive, the first and the last place of each one's ties, and the number
    of positives up to each place."""
    ordered, order = (scores + 0.0).sort(dim=1)
    hit = positive.gather(1, order)
    changes = ordered[:, 1:] != ordered[:, :-1]
    edge = torch.ones_like(hit[:, :1])
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    first = torch.where(torch.cat([edge, changes], 1), places, 0).cummax(1).values
    last = torch.where(torch.cat([changes, edge], 1), places, scores.shape[1]).flip(1).cummin(1).values.flip(1)
    return hit, first, last, hit.cumsum(1)


def _auroc_there(scores: Tensor, positive: Tensor) -> Tensor:
    hit, first, last, _ = _ties(scores, positive)
    hits = hit.sum(1)
    twice = ((first + last + 1) * hit).sum(1) - hits.square()
    pairs = hits * (scores.shape[1] - hits)
    return _exact(twice) / (2 * _exact(pairs))


def _precision_there(scores: Tensor, positive: Tensor) -> Tensor:
    hit, first, _, up_to = _ties(scores, positive)
    hits = hit.sum(1, keepdim=True)
    below = (up_to - hit.long()).gather(1, first)
    precision = _exact(hits - below) / _exact(scores.shape[1] - first)
    return (precision * hit).sum(1) / _exact(hits[:, 0])


def _exact(counts: Tensor) -> Tensor:
    return counts.to(torch.float32 if counts.device.type == "mps" else torch.float64)
