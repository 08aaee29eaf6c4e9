"""Area under the ROC curve and average precision, exact: only the ranks of positives are needed, and ties share theirs.

On a CPU each column is sorted with NumPy, many times as fast as torch there, on as many threads as torch has: NumPy's sort
lets other threads run. Where positives are many, their labels are sorted along with the scores as the last bit of an integer,
of 32 bits where the scores leave room for it: half the time of 64. Other devices take all columns at once, without waiting for
each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flatout.objectives.columns import Array, turned

_MOST_CELLS = 1 << 24  # on a device at once
_FEWEST_CELLS = 1 << 18  # on a CPU, for more than one thread
_MANY_POSITIVES = 0.04  # share from which sorting labels along with the scores is faster than searching for the positives
_LINE = 256
_NARROW = 1 << 15  # classes whose numbers are sorted fast


def areas_under_curve(scores: Tensor, labels: Tensor) -> Tensor:
    """float64 [columns], for scores [rows, columns] and true or false of the same shape, or the class of each row. NaN if a
    column has only one class, or a NaN among its scores."""
    return _each(scores, labels, _auroc_here, _auroc_there)


def average_precisions(scores: Tensor, labels: Tensor) -> Tensor:
    """float64 [columns]: the mean over positives of the precision among all rows that score at least as high. NaN without
    positives, or with a NaN among the scores."""
    return _each(scores, labels, _precision_here, _precision_there)


@dataclass(frozen=True)
class _Positives:
    """Of one column."""

    count: int
    marks: Callable[[], Array]
    rows: Callable[[], Array]


Here = Callable[[Array, _Positives], float]
There = Callable[[Tensor, Tensor], Tensor]


def _each(scores: Tensor, labels: Tensor, here: Here, there: There) -> Tensor:
    if scores.device.type == "cpu":
        each, positives = turned(scores.numpy()), _labelled(labels.numpy(), scores.shape[1])
        threads = min(torch.get_num_threads(), len(each)) if scores.numel() >= _FEWEST_CELLS else 1

        def areas(first: int) -> list[float]:
            places = range(first, len(each), threads)
            return [here(each[place] + 0, positives(place)) for place in places]  # 0.0 and -0.0 are equal

        if threads == 1:
            return torch.tensor(areas(0), dtype=torch.float64)
        found = torch.empty(len(each), dtype=torch.float64)
        with ThreadPoolExecutor(threads) as pool:
            for first, own in enumerate(pool.map(areas, range(threads))):
                found[first::threads] = torch.tensor(own, dtype=torch.float64)
        return found
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


def _labelled(labels: Array, columns: int) -> Callable[[int], _Positives]:
    if labels.ndim > 1:
        marks = turned(labels != 0)

        def of_column(place: int) -> _Positives:
            own = marks[place]
            return _Positives(int(np.count_nonzero(own)), lambda: own, lambda: np.flatnonzero(own))

        return of_column
    classes = labels.astype(np.int16) if columns < _NARROW else labels
    rows = np.argsort(classes, kind="stable")
    ends = np.searchsorted(classes, np.arange(columns + 1), sorter=rows).tolist()

    def of_class(place: int) -> _Positives:
        first, end = ends[place], ends[place + 1]
        return _Positives(end - first, lambda: classes == place, lambda: rows[first:end])

    return of_class


def _auroc_here(scores: Array, positives: _Positives) -> float:
    hits = positives.count
    pairs = hits * (len(scores) - hits)
    keys = _sorted_keys(scores, positives)
    if keys is not None:
        ranks = _rank_sum(keys)
    else:
        found = _ranks(scores, positives)
        if found is None:
            return math.nan
        ranks = int(found[0].sum()) + int(found[1].sum())
    return (ranks - hits**2) / (2 * pairs) if pairs else math.nan  # a positive beats half of its ties, itself among them


def _precision_here(scores: Array, positives: _Positives) -> float:
    keys = _sorted_keys(scores, positives)
    if keys is not None:
        places = np.flatnonzero((keys & 1).astype(bool))
        values = keys >> 1
        below, hits = places, values[places]
        if (values[1:] == values[:-1]).any():
            below = np.searchsorted(values, hits)
    else:
        found = _ranks(scores, positives)
        if found is None or not positives.count:
            return math.nan
        below, _, hits = found
    hits_below = np.arange(len(hits))
    same = np.concatenate([[False], hits[1:] == hits[:-1]])
    if same.any():
        hits_below = np.maximum.accumulate(np.where(same, 0, hits_below))
    return float(((len(hits) - hits_below) / (len(scores) - below)).mean())


def _ranks(scores: Array, positives: _Positives) -> tuple[Array, Array, Array] | None:
    """Of the positives in ascending order: the number of rows below, of those not above, and the scores. None if NaN. Sorts the
    scores."""
    hits = np.sort(scores[positives.rows()])
    scores.sort()
    if not len(scores) or np.isnan(scores[-1]):
        return None
    below = np.searchsorted(scores, hits)
    up_to = below + 1
    tied = np.flatnonzero(scores[np.minimum(up_to, len(scores) - 1)] == hits)
    up_to[tied] = np.searchsorted(scores, hits[tied], "right")
    return below, up_to, hits


def _sorted_keys(scores: Array, positives: _Positives) -> Array | None:
    """Integers in the order of the scores, with the label as their last bit. None where positives are few, and for NaN."""
    if scores.dtype != np.float32 or positives.count <= _MANY_POSITIVES * len(scores):
        return None
    sizes = np.abs(scores)
    largest = float(sizes.max())
    if math.isnan(largest):
        return None
    halved = _below_two(scores, sizes, largest)
    bits = (scores if halved is None else halved).view(np.int32)
    keys = bits >> 31
    keys &= 0x7FFFFFFF
    keys ^= bits
    if halved is None:
        keys = keys.astype(np.int64)
    keys += keys
    keys |= positives.marks()
    keys.sort()
    return keys


def _below_two(scores: Array, sizes: Array, largest: float) -> Array | None:
    """The scores times a power of 2, exactly: floats below 2 need one bit less. None if the smallest would be rounded."""
    if largest < 2:
        return scores
    if math.isinf(largest):
        return None
    power = math.frexp(largest)[1] - 1  # of 2, not above the largest
    least = math.ldexp(1.0, power - 126)
    if float(sizes.min()) < least and np.count_nonzero(sizes < least) > np.count_nonzero(sizes == 0):
        return None
    found: Array = scores * np.float32(math.ldexp(1.0, -power))
    return found


def _rank_sum(keys: Array) -> int:
    """The sum over positives of the number of rows below and of those not above."""
    hit = keys & 1
    keys >>= 1
    ranks = _sum_of_odds(hit)
    tied = np.flatnonzero(keys[1:] == keys[:-1])
    if not len(tied):
        return ranks
    first = np.concatenate([[True], tied[1:] != tied[:-1] + 1])  # of each group of ties
    begins, ends = tied[first], tied[np.concatenate([first[1:], [True]])] + 2
    edges = np.stack([begins, ends], 1).ravel()
    of_group = np.add.reduceat(np.append(hit, 0), edges, dtype=np.int64)[::2]
    own = np.add.reduceat(np.append(hit * np.arange(1, 2 * len(keys), 2), 0), edges)[::2]
    return ranks + int((of_group * (begins + ends)).sum()) - int(own.sum())


def _sum_of_odds(hit: Array) -> int:
    """The sum of 1, 3, 5, ... where `hit` is 1: what the rows there would give, were there no ties. Small integers are added
    many times as fast as large products."""
    lines, rest = hit[: len(hit) // _LINE * _LINE].reshape(-1, _LINE), hit[len(hit) // _LINE * _LINE :]
    of_lines = lines.sum(1, dtype=hit.dtype).astype(np.int64)
    places = np.dot(of_lines, np.arange(len(lines)) * _LINE) + np.dot(
        lines.sum(0, dtype=hit.dtype).astype(np.int64), np.arange(_LINE)
    )
    places += np.dot(rest.astype(np.int64), np.arange(lines.size, len(hit)))
    return 2 * int(places) + int(of_lines.sum()) + int(rest.sum())


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
