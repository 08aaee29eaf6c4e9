"""Parts of dates in ONNX operators, in exact integer arithmetic: the results of data/fitted/dates.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.packaging.onnx_front import FrontGraph
from flatout.packaging.onnx_libraries import library

MISSING_INSTANT = int(np.iinfo(np.int64).min)
_DAY_US = 86_400_000_000
_DAYS_TO_MARCH_0 = 719_468  # from 1 March of the year 0, where the 400-year cycles begin, to 1970
_CYCLE_DAYS = 146_097


def date_parts(front: FrontGraph, instants: str, parts: Sequence[str]) -> list[str]:
    """For int64 microseconds [rows, columns]: one float32 [rows, columns] for each part, NaN where missing."""
    dates = _Dates(front, instants)
    types = library("onnx").TensorProto
    missing = front.call("Equal", instants, dates.number(MISSING_INSTANT))
    nothing = front.constant(np.nan, np.float32)
    found = []
    for part in parts:
        value = dates.hour() if part == "hour" else front.call("Cast", dates.whole(part), to=types.FLOAT)
        found.append(front.call("Where", missing, nothing, value))
    return found


class _Dates:
    """Division in ONNX rounds toward zero; `_floor` rounds down, as Python does, which differs before 1970."""

    def __init__(self, front: FrontGraph, instants: str) -> None:
        self._front = front
        self._days, self._time_us = self._floor(instants, _DAY_US)
        self._calendar: tuple[str, str, str] | None = None

    def number(self, value: int) -> str:
        return self._front.constant(value, np.int64)

    def hour(self) -> str:
        """In float64 until the end, as NumPy divides."""
        types = library("onnx").TensorProto
        time = self._front.call("Cast", self._time_us, to=types.DOUBLE)
        hours = self._front.call("Div", time, self._front.constant(_DAY_US / 24, np.float64))
        return self._front.call("Cast", hours, to=types.FLOAT)

    def whole(self, part: str) -> str:
        if part == "weekday":
            return self._floor(self._with("Add", self._days, 3), 7)[1]  # 1970 began on a Thursday
        if self._calendar is None:
            self._calendar = self._year_month_day()
        return self._calendar[("year", "month", "day").index(part)]

    def _year_month_day(self) -> tuple[str, str, str]:
        """Years from March to February, so that the leap day is the last one; 400 of them always have the same days."""
        cycle, day = self._floor(self._with("Add", self._days, _DAYS_TO_MARCH_0), _CYCLE_DAYS)
        leaps = self._both("Sub", self._with("Div", day, 36_524), self._with("Div", day, 1_460))
        leaps = self._both("Sub", leaps, self._with("Div", day, 146_096))
        year = self._with("Div", self._both("Add", day, leaps), 365)  # of the cycle
        before = self._both("Add", self._with("Mul", year, 365), self._with("Div", year, 4))
        before = self._both("Sub", before, self._with("Div", year, 100))
        day_of_year = self._both("Sub", day, before)
        month = self._with("Div", self._with("Add", self._with("Mul", day_of_year, 5), 2), 153)  # March is 0
        begin = self._with("Div", self._with("Add", self._with("Mul", month, 153), 2), 5)
        day_of_month = self._with("Add", self._both("Sub", day_of_year, begin), 1)
        is_next_year = self._flag("GreaterOrEqual", month, 10)  # January and February
        calendar_month = self._both("Sub", self._with("Add", month, 3), self._with("Mul", is_next_year, 12))
        calendar_year = self._both("Add", self._both("Add", year, self._with("Mul", cycle, 400)), is_next_year)
        return calendar_year, calendar_month, day_of_month

    def _floor(self, value: str, divisor: int) -> tuple[str, str]:
        """Quotient and remainder, rounded down."""
        quotient = self._with("Div", value, divisor)
        remainder = self._both("Sub", value, self._with("Mul", quotient, divisor))
        below = self._flag("Less", remainder, 0)
        return self._both("Sub", quotient, below), self._both("Add", remainder, self._with("Mul", below, divisor))

    def _flag(self, comparison: str, value: str, number: int) -> str:
        return self._front.call("Cast", self._with(comparison, value, number), to=library("onnx").TensorProto.INT64)

    def _with(self, operator: str, value: str, number: int) -> str:
        return self._front.call(operator, value, self.number(number))

    def _both(self, operator: str, left: str, right: str) -> str:
        return self._front.call(operator, left, right)
