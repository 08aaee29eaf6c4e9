"""Rows with a date and a random holdout: a model of the past is judged by rows of the same days, not by the days to come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.look import FEW_ROWS, TableLook, coded, is_numeric, numbers_of
from flatout.explore.guard.written_dates import day_of_digits, digits_format, ends_of_text, text_format

Array = np.ndarray[Any, Any]

_NOT_WHEN = re.compile(r"birth|born|dob|expir|due|until|deadline|founded|built", re.IGNORECASE)
_LEAST_MOMENTS = 10
_LATEST = 0.2  # of the rows are held out
_EPOCHS = ((5e8, 4e9), (5e11, 4e12))  # seconds and milliseconds since 1970, of 1985 to 2096
_EPOCH_NAME = re.compile(r"time|date|epoch|stamp|created|_at$|^ts$|_ts$", re.IGNORECASE)


def find_dates(look: TableLook) -> Iterator[GuardFinding]:
    if not look.random_holdout or look.held:
        return
    dates = [column for column in look.inputs if _is_when(column)]
    if not dates:
        yield from _as_text(look)
        return
    when = next((column for column in dates if not column.values.null_count), dates[0])
    first, last = _ends(when)
    why_not = _why_not(look, when)
    if why_not:
        yield GuardFinding(
            "time", when.name, float(when.distinct),
            f"rows from {first} to {last}, and a random holdout is from the same days",
            f"the latest rows can't be held out, since {why_not}: judge the model by a file of later rows",
        )  # fmt: skip
        return
    yield GuardFinding(
        "time", when.name, float(when.distinct),
        f"rows from {first} to {last}, and a random holdout would be from the same days",
        f"hold out the latest rows: holdout_latest: {when.name}",
        {"holdout_latest": when.name},
        "the latest rows are held out",
    )  # fmt: skip


def _as_text(look: TableLook) -> Iterator[GuardFinding]:
    """Dates that are read as text: neither an input nor an order of the rows."""
    for column in look.inputs:
        written = None if column.rows < FEW_ROWS or _NOT_WHEN.search(column.name) else text_format(column)
        if written is None or column.distinct < _LEAST_MOMENTS:
            continue
        first, last = ends_of_text(column, written)
        rewrite = f"write it as 2024-12-31, or 2024-12-31 18:30 (it is written {written}), and draft again"
        yield GuardFinding(
            "time", column.name, float(column.distinct),
            f"rows from {first} to {last} as text such as {column.counts[0][0]!r}, and a random holdout is from the same days",
            f"to hold out the latest rows, {rewrite}",
            {"drop": [column.name]},
            f"left out; to hold out the latest rows, {rewrite}",
        )  # fmt: skip
        return


def _is_when(column: SampledColumn) -> bool:
    """Whether it says when a row came about: no birthday, and more than a few moments."""
    import pyarrow as pa

    if column.rows < FEW_ROWS or column.distinct < _LEAST_MOMENTS or _NOT_WHEN.search(column.name):
        return False
    if column.kind == "date":
        return bool(pa.types.is_timestamp(column.values.type) or pa.types.is_date(column.values.type))
    if not is_numeric(column):
        return False
    if digits_format(column) is not None:
        return True
    if not _EPOCH_NAME.search(column.name):
        return False
    low, high = float(column.numbers.min()), float(column.numbers.max())
    return any(least <= low and high <= most for least, most in _EPOCHS)


def _why_not(look: TableLook, when: SampledColumn) -> str:
    """Why the latest rows can't be held out: rows without a date, or a label that only the latest rows have."""
    if when.values.null_count:
        return f"{when.values.null_count:,} rows have none"
    if look.target != "class":
        return ""
    labels = coded(look.label)
    moments = numbers_of(when) if is_numeric(when) else _days(when).astype(np.int64)
    training = moments <= np.quantile(moments, 1 - _LATEST)
    names = look.label.values.dictionary_encode().dictionary.to_pylist()
    late = [str(name) for code, name in enumerate(names) if not (labels[training] == code).any()]
    return f"only they have the label {late[0]!r}" if late else ""


def _ends(column: SampledColumn) -> tuple[str, str]:
    if (written := digits_format(column)) is not None:
        return day_of_digits(column.numbers.min(), written), day_of_digits(column.numbers.max(), written)
    if is_numeric(column):
        seconds = column.numbers / (1e3 if column.numbers.min() > _EPOCHS[0][1] else 1)
        low, high = (str(np.datetime64(int(end), "s").astype("datetime64[D]")) for end in (seconds.min(), seconds.max()))
        return low, high
    days = _days(column)
    return str(days.min()), str(days.max())


def _days(column: SampledColumn) -> Array:
    return np.asarray(column.values.drop_null().to_numpy(zero_copy_only=False)).astype("datetime64[D]")
