"""Parts of dates, and the time between two of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flatout.data.fitted.dates import date_part
from flatout.data.fitted.derived.derived_values import Array, DerivedDates, DerivedNumbers

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


def part_of(name: str) -> Callable[[DerivedDates], DerivedNumbers]:
    return _computed(lambda instants: np.floor(date_part(name, instants)))


def minute_of(instants: Array) -> Array:
    return np.asarray(instants // (60 * SECOND_US) % 60, dtype=np.float64)


def second_of(instants: Array) -> Array:
    return np.asarray(instants // SECOND_US % 60, dtype=np.float64)


def day_of_year(instants: Array) -> Array:
    day = np.floor_divide(instants, DAY_US).astype("datetime64[D]")
    return np.asarray((day - day.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64) + 1, dtype=np.float64)


def weekend(instants: Array) -> Array:
    return np.asarray(date_part("weekday", instants) >= 5, dtype=np.float64)


def _computed(compute: Callable[[Array], Array], truth: bool = False) -> Callable[[DerivedDates], DerivedNumbers]:
    return lambda column: DerivedNumbers(np.where(column.missing, np.nan, compute(column.instants)), truth)


MINUTE, SECOND, DAY_OF_YEAR = _computed(minute_of), _computed(second_of), _computed(day_of_year)
IS_WEEKEND = _computed(weekend, truth=True)


def between(unit_us: int) -> Callable[[DerivedDates, DerivedDates], DerivedNumbers]:
    """From the first date to the second, with fractions; negative if the second is earlier."""

    def run(first: DerivedDates, second: DerivedDates) -> DerivedNumbers:
        apart = (second.instants - first.instants) / unit_us
        return DerivedNumbers(np.where(first.missing | second.missing, np.nan, apart))

    return run
