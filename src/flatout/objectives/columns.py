"""Columns of tables in a CPU's memory: what runs along a column is many times as fast once it is in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]
_LINES = 512  # rows that are turned at once, while a CPU's cache holds them
_WIDE = 640  # marks in a line, so that adding lines pays
_MOST = 255  # what a byte counts to


def turned(rows: Array) -> Array:
    """[columns, N] for [N, columns], each column in one piece."""
    if rows.T.flags.c_contiguous:
        return rows.T
    made = np.empty(rows.shape[::-1], rows.dtype)
    for first in range(0, len(rows), _LINES):
        made[:, first : first + _LINES] = rows[first : first + _LINES].T
    return made


def joined_columns(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all parts, column by column in memory."""
    if len(parts) == 1 and parts[0].t().is_contiguous():
        return parts[0]
    made = torch.empty((parts[0].shape[1], sum(map(len, parts))), dtype=parts[0].dtype)
    done = 0
    for part in parts:
        made[:, done : done + len(part)].copy_(part.t())
        done += len(part)
    return made.t()


def above(values: Tensor, least: float, *, or_equal: bool = False) -> Tensor:
    """`values > least`, or `>=`. NumPy is several times as fast as torch on a CPU."""
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64, torch.int64):
        return values >= least if or_equal else values > least
    here = values.detach().numpy()
    return torch.from_numpy(np.asarray(here >= least if or_equal else here > least))


def how_many(marks: Tensor) -> Tensor | float:
    """True ones, without waiting for a device."""
    return marks.sum() if marks.device.type != "cpu" else float(np.count_nonzero(marks.numpy()))


def column_counts(marks: Array) -> Array:
    """int64 [columns]: how many of bool [N, columns] are true in each. Bytes are added, as many at once as one can hold."""
    rows, columns = marks.shape
    at_once = max(1, _WIDE // max(1, columns))
    even = rows - rows % at_once
    lines = np.ascontiguousarray(marks[:even]).view(np.uint8).reshape(-1, at_once * columns)
    found = np.zeros(at_once * columns, np.int64)
    for first in range(0, len(lines), _MOST):
        found += lines[first : first + _MOST].sum(0, dtype=np.uint8)
    total: Array = found.reshape(at_once, columns).sum(0) + marks[even:].sum(0, dtype=np.int64)
    return total
