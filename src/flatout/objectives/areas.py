"""Area under the ROC curve and average precision, exact: only the ranks of positives are needed, and ties share theirs.

On a CPU the columns are sorted one by one with NumPy, several times as fast as torch there. Other devices take all columns at
once, without waiting for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]
_MOST_CELLS = 1 << 24  # on a device at once


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
        each = scores.t().contiguous().numpy() + 0.0  # 0.0 and -0.0 are equal
        of_each = (labels.t() != 0).contiguous().numpy() if labels.dim() > 1 else None
        classes = labels.numpy()
        found = [here(one, classes == place if of_each is None else of_each[place]) for place, one in enumerate(each)]
        return torch.tensor(found, dtype=torch.float64)
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
    found = _ranks(scores, positive)
    if found is None:
        return math.nan
    below, up_to, hits = found
    pairs = len(hits) * (len(scores) - len(hits))
    twice = int(below.sum()) + int(up_to.sum()) - len(hits) ** 2  # a positive beats half of its ties, itself among them
    return twice / (2 * pairs) if pairs else math.nan


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
