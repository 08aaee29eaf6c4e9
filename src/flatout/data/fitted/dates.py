"""Dates and times as numbers: microseconds since 1970, and parts for a model.

A time with a zone is converted to UTC; a time without one is used as written.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PARTS = ("year", "month", "day", "weekday", "hour")
"""`weekday` counts from Monday = 0; `hour` includes minutes and seconds as a fraction."""

PERIODS = {"month": 12.0, "weekday": 7.0, "hour": 24.0}
"""Parts that repeat: sine and cosine make the last value a neighbour of the first."""

_DAY_US = 86_400_000_000
_EPOCH = dt.datetime(1970, 1, 1)
_US = dt.timedelta(microseconds=1)


def date_part(part: str, instants: Array) -> Array:
    """float64 of one part of int64 microseconds."""
    days = np.floor_divide(instants, _DAY_US)
    if part == "hour":
        return np.asarray((instants - days * _DAY_US) / (_DAY_US / 24), dtype=np.float64)
    if part == "weekday":
        return np.asarray((days + 3) % 7, dtype=np.float64)  # 1970 began on a Thursday
    day = days.astype("datetime64[D]")
    if part == "year":
        return np.asarray(day.astype("datetime64[Y]").astype(np.int64) + 1970, dtype=np.float64)
    month = day.astype("datetime64[M]")
    if part == "month":
        return np.asarray(month.astype(np.int64) % 12 + 1, dtype=np.float64)
    return np.asarray((day - month.astype("datetime64[D]")).astype(np.int64) + 1, dtype=np.float64)


def to_instant(value: Any, format: str | None = None) -> int | None:
    """Microseconds of a date, a time, or text with one; None if missing. ValueError or TypeError for other values."""
    if value is None or value != value:
        return None
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value.strip()) if format is None else dt.datetime.strptime(value.strip(), format)
    elif isinstance(value, np.datetime64):
        return None if np.isnat(value) else int(value.astype("datetime64[us]").astype(np.int64))
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        return int((value - _EPOCH) // _US)
    if isinstance(value, dt.date):
        return (dt.datetime(value.year, value.month, value.day) - _EPOCH) // _US
    if isinstance(value, dt.time):
        return dt.timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond) // _US
    raise TypeError(f"{value!r} is no date")
