"""Dates that a table does not read as dates: text such as 31.12.2024, and numbers such as 20241231."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import numpy as np

from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.look import is_whole

Array = np.ndarray[Any, Any]

_LOOKED_AT = 200
_YEARS = (1970, 2100)
_CLOCKS = ("", " %H:%M:%S", " %H:%M", " %I:%M %p", " %I:%M:%S %p")
_DAYS = (
    "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d",
    "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d %B %Y", "%b %d %Y", "%B %d %Y", "%b %d, %Y", "%B %d, %Y", "%a %b %d %Y",
    "%a, %d %b %Y", "%a %d %b %Y", "%A, %d %B %Y", "%A, %B %d, %Y", "%Y-%m-%d",
)  # fmt: skip
_WHOLE = ("%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S %Z", "%d/%b/%Y:%H:%M:%S %z")
_DIGITS = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_HAS_DATE = re.compile(r"\d")


def text_format(column: SampledColumn) -> str | None:
    """The format in which all of the looked at texts are dates, such as %d.%m.%Y; None if they are no dates."""
    if column.kind != "text" or not column.distinct:
        return None
    every = max(1, column.distinct // _LOOKED_AT)
    values = [value.strip() for value, _ in column.counts[::every]]
    if not all(6 <= len(value) <= 40 and _HAS_DATE.search(value) for value in values):
        return None
    likely = [one for one in (*_WHOLE, *(day + clock for day in _DAYS for clock in _CLOCKS)) if _read(values[0], one)]
    return next((one for one in likely if all(_read(value, one) for value in values)), None)


def ends_of_text(column: SampledColumn, written: str) -> tuple[str, str]:
    days = [day for day in (_read(value.strip(), written) for value, _ in column.counts) if day is not None]
    return str(min(days).date()), str(max(days).date())


def digits_format(column: SampledColumn) -> str | None:
    """%Y%m%d for whole numbers such as 20241231, and longer ones with the time."""
    if not is_whole(column) or not len(column.numbers) or np.isnan(column.numbers).any():
        return None
    low, high = column.numbers.min(), column.numbers.max()
    written = _DIGITS.get(len(str(int(low)))) if low > 0 and len(str(int(low))) == len(str(int(high))) else None
    if written is None:
        return None
    every = max(1, len(column.numbers) // _LOOKED_AT)
    return written if all(_read(str(int(one)), written) for one in column.numbers[::every]) else None


def day_of_digits(number: float, written: str) -> str:
    return str(datetime.strptime(str(int(number)), written).date())


def _read(text: str, written: str) -> datetime | None:
    try:
        found = datetime.strptime(text, written).replace(tzinfo=None)
    except ValueError:
        return None
    return found if _YEARS[0] <= found.year < _YEARS[1] else None
