"""Numbers with a heavy tail: a few values so far out that they decide the mean and the deviation of the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from flatout.base.units import show_count
from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.look import FEW_ROWS, TableLook, is_numeric

Array = np.ndarray[Any, Any]

_FAR = 10.0  # deviations from the mean
_LABEL_FAR = 20.0
_CODE = re.compile(r"-?9{3,}|-?1e3[0-9]")  # as a number would be written that means "missing"
_CODE_SHARE = (0.0005, 0.5)  # of the rows
_CODE_APART = 3.0  # times the range of all other values


def find_tails(look: TableLook) -> Iterator[GuardFinding]:
    if look.target == "number" and is_numeric(look.label):
        yield from _of_label(look.label)
    for column in look.inputs:
        if not is_numeric(column) or column.distinct <= FEW_ROWS:
            continue
        code = _code(column)
        if code is not None:
            value, rows = code
            yield GuardFinding(
                "tail", column.name, rows / column.rows,
                f"{value} in {rows:,} rows ({rows / column.rows:.1%}), far from all other values",
                f"if it means missing, set na: ['{value}']",
            )  # fmt: skip
            continue
        numbers = column.numbers[np.isfinite(column.numbers)]
        if not len(numbers):
            continue
        deviation = float(numbers.std())
        mean = float(numbers.mean())
        far = np.abs(numbers - mean)
        if deviation == 0 or far.max() <= _FAR * deviation:
            continue
        extreme = float(numbers[far.argmax()])
        logs = float(numbers.min()) >= 0
        steps = ["log", "standardise"] if logs else [{"clip": 0.001}, "standardise"]
        yield GuardFinding(
            "tail", column.name, float(far.max() / deviation),
            f"{show_count(extreme)} is {far.max() / deviation:.0f} deviations from the mean, {show_count(mean)}",
            f"set steps to {'log, standardise' if logs else 'clip 0.001, standardise'}",
            {"steps": {column.name: steps}},
            "its logarithm is used" if logs else "clipped at 0.1% of the rows at both ends",
        )  # fmt: skip


def _of_label(label: SampledColumn) -> Iterator[GuardFinding]:
    numbers = label.numbers[np.isfinite(label.numbers)]
    deviation = float(numbers.std()) if len(numbers) else 0.0
    far = np.abs(numbers - numbers.mean()) if deviation else np.zeros(1)
    if label.distinct > FEW_ROWS and far.max() > _LABEL_FAR * deviation > 0:
        yield GuardFinding(
            "tail", label.name, float(far.max() / deviation),
            f"{show_count(float(numbers[far.argmax()]))} is {far.max() / deviation:.0f} deviations from the mean, "
            f"{show_count(float(numbers.mean()))}",
            "correct these rows, or set objective: {regress: {error: huber}}, which they change less",
        )  # fmt: skip


def _code(column: SampledColumn) -> tuple[str, int] | None:
    """A number such as -9999 in several rows and far from all others, and how many rows have it."""
    for value, rows in column.counts[:FEW_ROWS]:
        if rows < 3 or not _CODE_SHARE[0] <= rows / column.rows <= _CODE_SHARE[1] or not _CODE.fullmatch(value):
            continue
        others = column.numbers[column.numbers != float(value)]
        width = float(others.max() - others.min())
        if min(abs(float(value) - others.min()), abs(float(value) - others.max())) > _CODE_APART * width > 0:
            return value, rows
    return None
