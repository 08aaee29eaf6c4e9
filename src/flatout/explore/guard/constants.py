"""Numbers and parts of dates with one value in almost every row: a small deviation puts the next value far out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flatout.data.fitted.dates import PARTS, date_part
from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.look import TableLook, is_numeric

Array = np.ndarray[Any, Any]

_SAME = 0.98  # of the rows
_SAME_TEXT = 0.998
_FEW_ROWS = 200
_FAR = 5.0  # deviations from the usual value to the nearest other one
_SMALL_SPREAD = 1e-5  # of the mean: float32 keeps two or three digits of such a difference


def find_near_constants(look: TableLook) -> Iterator[GuardFinding]:
    for column in look.inputs:
        if column.rows - int(column.values.null_count) < _FEW_ROWS:
            continue
        if column.distinct == 1 and not column.values.null_count and not _says_nothing(column):
            yield _constant(column)
        elif column.kind == "date":
            yield from _date(column)
        elif is_numeric(column):
            yield from _number(column)
        elif column.kind == "text" and column.distinct > 1 and column.counts[0][1] >= _SAME_TEXT * column.rows:
            share = column.counts[0][1] / column.rows
            yield GuardFinding(
                "near_constant", column.name, share, f"{column.counts[0][0]!r} in {share:.2%} of the rows",
                "there is almost nothing to learn from it: leave it out with drop", {"drop": [column.name]}, "left out",
            )  # fmt: skip


def _says_nothing(column: SampledColumn) -> bool:
    """NaN, or 0 in all of these rows: one of many kinds, as in Soil_Type15, that they do not have."""
    return is_numeric(column) and not np.nan_to_num(column.numbers).any()


def _constant(column: SampledColumn) -> GuardFinding:
    return GuardFinding(
        "near_constant", column.name, 1.0, f"{column.counts[0][0]!r} in every row",
        "there is nothing to learn from it: leave it out with drop", {"drop": [column.name]}, "left out",
    )  # fmt: skip


def _number(column: SampledColumn) -> Iterator[GuardFinding]:
    finite = column.numbers[np.isfinite(column.numbers)]
    deviation, size = (float(finite.std()), abs(float(finite.mean()))) if len(finite) else (0.0, 0.0)
    if 0 < deviation < _SMALL_SPREAD * size:
        yield GuardFinding(
            "near_constant", column.name, deviation / size,
            f"deviation {deviation:.3g} around {finite.mean():g}, which is {deviation / size:.1g} of it",
            "drop it if that is the noise of a sensor; if it is not, subtract the usual value in the file",
        )  # fmt: skip
        return
    found = _near_constant(column.numbers)
    if found is None or set(np.unique(column.numbers).tolist()) <= {0.0, 1.0}:  # a rare flag can't go beyond 1
        return
    usual, share, deviation, step = found
    yield GuardFinding(
        "near_constant", column.name, share,
        f"{usual:g} in {share:.1%} of the rows, deviation {deviation:.3g}: the nearest other value is "
        f"{step / deviation:.0f} deviations out",
        "clip it to the values of the training rows: steps with clip, quantiles [0, 1]",
        {"steps": {column.name: {"clip": {"quantiles": [0, 1]}}}},
        "clipped to the values of the training rows",
    )  # fmt: skip


def _date(column: SampledColumn) -> Iterator[GuardFinding]:
    if not _parts(column):
        return
    instants = _instants(column)
    found = {part: _near_constant(np.floor(date_part(part, instants))) for part in _parts(column)}
    poor = {part: one for part, one in found.items() if one is not None}
    if not poor:
        return
    part, (usual, share, deviation, step) = next(iter(poor.items()))
    rest = [name for name in found if name not in poor]
    change = {"steps": {column.name: {"date": {"parts": rest}}}} if rest else {"drop": [column.name]}
    yield GuardFinding(
        "near_constant", column.name, share,
        f"its {part} is {usual:g} in {share:.1%} of the rows, deviation {deviation:.3g}: the next {part} is "
        f"{step / deviation:.0f} deviations out",
        f"leave out {', '.join(poor)}: steps with date, parts",
        change,
        f"without its {', '.join(poor)}" if rest else "left out",
    )  # fmt: skip


def _parts(column: SampledColumn) -> list[str]:
    import pyarrow as pa

    if pa.types.is_duration(column.values.type):
        return []
    if pa.types.is_time(column.values.type):
        return ["hour"]
    return [part for part in PARTS if part != "hour" or not pa.types.is_date(column.values.type)]


def _instants(column: SampledColumn) -> Array:
    import pyarrow as pa

    values = column.values.drop_null()
    if pa.types.is_time(values.type):
        return np.asarray(values.cast(pa.time64("us"), safe=False).cast(pa.int64()).to_numpy(zero_copy_only=False))
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype("datetime64[us]").astype(np.int64)


def _near_constant(numbers: Array) -> tuple[float, float, float, float] | None:
    """The usual value, its share, the deviation, and the distance of the nearest other value."""
    numbers = numbers[np.isfinite(numbers)]
    values, counts = np.unique(numbers, return_counts=True)
    if len(values) < 2:
        return None
    usual, share, deviation = float(values[counts.argmax()]), float(counts.max() / len(numbers)), float(numbers.std())
    step = float(np.abs(values[values != usual] - usual).min())
    return (usual, share, deviation, step) if share >= _SAME and step >= _FAR * deviation > 0 else None
