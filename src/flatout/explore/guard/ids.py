"""Ids and columns of text with another value in almost every row: nothing in them holds for a new row."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.look import FEW_ROWS, TableLook, is_whole
from flatout.explore.guard.written_dates import digits_format, text_format

ID_NAME = re.compile(r"(^|[^a-z])(id|ids|uuid|guid|index|key|rowid|unnamed)([^a-z]|$)|[a-z]Id$|[a-z]ID$", re.IGNORECASE)
_UNIQUE_TEXT = 0.5  # of the rows: most values of the column occur once
_UNIQUE_NUMBERS = 0.95
_EPOCH_S = (5e8, 4e9)  # seconds since 1970 of 1985 to 2096
_SMALL_TABLE = 50


def find_ids(look: TableLook) -> Iterator[GuardFinding]:
    for column in look.inputs:
        present = column.rows - int(column.values.null_count)
        if present < FEW_ROWS or not _identifies(column, present):
            continue
        share = column.distinct / present
        if column.distinct == present:
            figure = f"another value in every row ({column.distinct:,} values)"
        else:
            figure = f"{column.distinct:,} different values in {present:,} rows"
        yield GuardFinding(
            "id",
            column.name,
            share,
            figure,
            "an id says nothing about new rows: leave it out with drop",
            {"drop": [column.name]},
            "left out",
        )


def _identifies(column: SampledColumn, present: int) -> bool:
    share = column.distinct / present
    if text_format(column) is not None or digits_format(column) is not None:
        return False
    if column.kind == "text":
        return share == 1 or (share > _UNIQUE_TEXT and present >= max(_SMALL_TABLE, column.rows / 2))
    if share < _UNIQUE_NUMBERS or not is_whole(column):
        return False
    return bool(ID_NAME.search(column.name)) or _counts_up(column)


def _counts_up(column: SampledColumn) -> bool:
    """Whether it numbers the rows: with few gaps, or in the order of the file. Seconds since 1970 do not."""
    numbers = column.numbers
    low, high = float(numbers.min()), float(numbers.max())
    if _EPOCH_S[0] <= low and high <= _EPOCH_S[1] * 1e9 and high - low > 2 * len(numbers):
        return False
    if high - low + 1 <= 1.1 * len(numbers):
        return True
    steps = np.diff(numbers)
    return bool((steps > 0).all() or (steps < 0).all())
