"""Fits columns of dates: each part of a date (year, month, ...) is a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flatout.data.fitted.codings import Date
from flatout.data.fitted.dates import PERIODS, date_part
from flatout.data.fitted.table_features import NumberFeatures
from flatout.data.fitted.values import Values
from flatout.data.sources.tables.column_fits import Context, Dropped, FittedColumn, Moments
from flatout.data.sources.tables.quantiles import HashSample
from flatout.data.sources.tables.steps import ColumnPlan

Array = np.ndarray[Any, Any]

_LEAST_DEVIATION = 1.0
"""Rows of one day and a few of the day before have a day of the month with a deviation of 0.1: the next day would be 10
deviations out. One day, month or year is at most one deviation."""


class DateFit:
    def __init__(self, column: ColumnPlan, context: Context) -> None:
        import pyarrow as pa

        self.name, self._steps = column.name, column.steps.date
        of_day = ("hour",) if pa.types.is_time(column.type) else self._steps.parts
        self._parts = {part: Moments() for part in of_day if part != "hour" or not pa.types.is_date(column.type)}

    def add(self, values: Values, folds: Mapping[str, Array], y: Array | None) -> None:
        instants, missing = values.instants(self.name, self._steps.format)
        for part, moments in self._parts.items():
            moments.add(np.where(missing, np.nan, date_part(part, instants)))

    def done(self, sample: HashSample | None, notes: Dropped) -> FittedColumn | None:
        varying = {part: moments for part, moments in self._parts.items() if moments.varies}
        if not varying:
            empty = all(not moments.count for moments in self._parts.values())
            (notes.empty if empty else notes.constant).append(self.name)
            return None
        notes.constant += [f"{self.name}.{part}" for part in self._parts if part not in varying]
        features = []
        for place, (part, moments) in enumerate(varying.items()):
            # one flag is enough: all parts of a date are missing together
            flag = f"{self.name}=missing" if moments.missing and not place else None
            period = PERIODS.get(part) if self._steps.cycles else None
            deviation = max(moments.std, _LEAST_DEVIATION)
            features.append(
                NumberFeatures(
                    f"{self.name}.{part}", fill=moments.mean, flag=flag, mean=moments.mean, std=deviation, period=period
                )
            )
        return FittedColumn(Date(self.name, tuple(varying), self._steps.format), tuple(features))
