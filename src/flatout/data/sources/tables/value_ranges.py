"""The smallest and the largest values of columns in a row group of a Parquet file, as its metadata tells them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def ends_of(group: Any, schema: Any, names: Sequence[str]) -> Any | None:
    """A record batch of two rows, the smallest and the largest values, of those columns whose range is known; None if none is.

    Infinite values are missing ones to expressions, so a range that reaches them is not known.
    """
    import pyarrow as pa

    places = {group.column(number).path_in_schema: number for number in range(group.num_columns)}
    found = {}
    for name in names:
        if name not in places or not _has_order(schema.field(name).type):
            continue
        if (ends := _ends(group.column(places[name]).statistics, schema.field(name).type)) is not None:
            found[name] = ends
    return pa.RecordBatch.from_pydict(found) if found else None


def _ends(statistics: Any, kind: Any) -> Any | None:
    import pyarrow as pa

    if statistics is None or not statistics.has_min_max:
        return None
    try:
        ends = [statistics.min, statistics.max]
        return None if any(isinstance(end, float) and not math.isfinite(end) for end in ends) else pa.array(ends, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):  # of a date that Python can't hold, for example
        return None


def _has_order(kind: Any) -> bool:
    import pyarrow.types as types

    floats = types.is_float32(kind) or types.is_float64(kind)
    return bool(floats or types.is_integer(kind) or types.is_date(kind) or types.is_timestamp(kind))
