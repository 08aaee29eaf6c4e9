"""Numbers with a heavy tail: a few values so far out that they decide the mean and the deviation of the rest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flatout.base.units import show_count
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.look import FEW_ROWS, TableLook, is_numeric

_FAR = 10.0  # deviations from the mean


def find_tails(look: TableLook) -> Iterator[GuardFinding]:
    for column in look.inputs:
        if not is_numeric(column) or column.distinct <= FEW_ROWS:
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
