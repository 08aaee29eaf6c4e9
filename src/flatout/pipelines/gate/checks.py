"""The comparisons of a gate: pass, fail or no verdict, for each metric on all rows and on each slice.

Passed: the new model is shown to lose less than the margin. Failed: it is shown to lose, and not shown to stay within the
margin. Else these rows do not tell. All comparisons of one gate, and the looks at the same rows before, share an error of 5%.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from flatout.measure.row_proof import RowCheck, level_of
from flatout.shrinking.metric import LOSS, SCORE, SQUARED, TRUTH, WRONG, Costs, Metric

PASS, FAIL, NO_VERDICT = "pass", "fail", "no verdict"
LEAST_ROWS = 30  # of a slice
_PARTS, _MOST_VALUES = 4, 12  # a column of numbers with more values is cut into quarters
_MOST_SLICES = 40
_POWER = 0.8
_MOST_ROWS = 10**12

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class GateCheck:
    """`lost`: what the new model gives up, with its interval, in the margin's unit; negative: it gains. `rows_needed`: of this
    slice, for a verdict; None: there is one. Without an old model `margin` is the floor, in the metric's own unit, and `lost`
    is what the model is below it, in points or in that unit."""

    metric: str
    slice: str  # "" for all rows
    verdict: str
    new: float
    old: float | None
    lost: float
    low: float
    high: float
    margin: float
    n: int
    level: float
    power: float | None
    rows_needed: int | None
    words: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def slices_of(columns: Mapping[str, npt.NDArray[Any]]) -> tuple[dict[str, Mask], list[str]]:
    """Names and rows of the slices that are large enough; and notes of the others."""
    found: dict[str, Mask] = {}
    notes: list[str] = []
    for column, values in columns.items():
        some = dict(_slices(column, values))
        large = {name: mask for name, mask in some.items() if mask.sum() >= LEAST_ROWS}
        if len(large) < len(some):
            notes.append(
                f"{len(some) - len(large)} of {len(some)} slices by {column} have fewer than {LEAST_ROWS} rows and are left out"
            )
        largest = sorted(large, key=lambda name: -int(large[name].sum()))[:_MOST_SLICES]
        if len(largest) < len(large):
            notes.append(f"of {len(large)} slices by {column} the {_MOST_SLICES} largest are compared")
        found |= {name: large[name] for name in large if name in largest}
    return found, notes


def _slices(column: str, values: npt.NDArray[Any]) -> Iterator[tuple[str, Mask]]:
    if np.issubdtype(values.dtype, np.floating) or np.issubdtype(values.dtype, np.integer):
        known = np.isfinite(values.astype(np.float64))
        if len(np.unique(values[known])) > _MOST_VALUES:
            edges = np.unique(np.quantile(values[known].astype(np.float64), np.linspace(0, 1, _PARTS + 1)))
            for place, (low, high) in enumerate(pairwise(edges)):
                last = place == len(edges) - 2
                inside = known & (values >= low) & ((values <= high) if last else (values < high))
                yield f"{column} {low:.4g} to {high:.4g}", inside
            if not known.all():
                yield f"{column} missing", ~known
            return
    texts = np.array(["missing" if value is None else str(value) for value in values.tolist()])
    for value in np.unique(texts):
        yield f"{column}={value}", texts == value


def compared(metric: Metric, new: Costs, old: Costs, name: str, look: int, among: int) -> GateCheck:
    check = metric.check(old, new, look, among)
    figures = check.figures
    lost, low, high = figures["difference"], figures["lower_bound"], figures["upper_bound"]
    verdict = PASS if check.passed else FAIL if low > 0 else NO_VERDICT
    needed = None if verdict != NO_VERDICT else _rows_needed(check)
    words = _words(verdict, check.why, needed)
    shown = [_shown(metric, one, old) for one in (lost, low, high)]
    return GateCheck(
        metric.name, name, verdict, metric.of(new), metric.of(old), shown[0], shown[1], shown[2], metric.margin, check.n,
        check.level, check.power, needed, words,
    )  # fmt: skip


def _shown(metric: Metric, lost: float, old: Costs) -> float:
    """A difference of costs in the unit of the margin."""
    if metric.unit == "percent":  # of the root of the mean square
        mean = max(float(old[SQUARED].mean()), 1e-300)
        return 100 * (math.sqrt(max(1 + lost / mean, 0.0)) - 1)
    return lost if metric.unit == "loss" else 100 * lost


def _rows_needed(check: RowCheck) -> int | None:
    """For an interval that leaves out either the margin or zero, at the difference seen here; None: no number is enough."""
    figures, z = check.figures, NormalDist().inv_cdf(1 - check.level)
    allowed = figures["upper_bound"] - figures["difference"]
    error = allowed / z
    margin = check.margin
    ways = [(margin - figures["difference"]), figures["difference"]]
    able = [error * (z + NormalDist().inv_cdf(_POWER)) / one for one in ways if one > 0]
    needed = min((check.n * one**2 for one in able), default=math.inf)
    wanted = max(needed, figures.get("rows_needed", 0.0) if figures["difference"] <= 0 else 0.0, check.n + 1)
    return math.ceil(wanted) if wanted < _MOST_ROWS else None


def _words(verdict: str, why: str, needed: int | None) -> str:
    if verdict != NO_VERDICT:
        return why
    takes = "no number of rows is enough" if needed is None else f"it takes about {needed:,} rows"
    return f"{takes}; {why.partition('; it takes')[0].removeprefix('not enough evidence: ')}"


def above_floor(metric: Metric, new: Costs, floor: float, look: int, among: int) -> GateCheck:
    """Without an old model: is the new one shown to be at least this good?"""
    level = level_of(look, among)
    z = NormalDist().inv_cdf(1 - level)
    value, low, high, rows = _with_interval(metric, new, z)
    higher_is_better = metric.unit == "points"
    reached, missed = (low >= floor, high < floor) if higher_is_better else (high <= floor, low > floor)
    verdict = PASS if reached else FAIL if missed else NO_VERDICT
    edge = abs(value - floor)
    needed = None
    if verdict == NO_VERDICT and edge > 0:
        needed = math.ceil(max(rows + 1, rows * ((high - low) / 2 / edge * (1 + NormalDist().inv_cdf(_POWER) / z)) ** 2))
        needed = needed if needed < _MOST_ROWS else None
    what = "at least" if higher_is_better else "at most"
    words = f"{value:.4g} [{low:.4g}, {high:.4g}], {what} {floor:g} is asked for, n={rows:,}"
    words = _words(verdict, words, needed)
    lost = (floor - value) if higher_is_better else (value - floor)
    bounds = (floor - high, floor - low) if higher_is_better else (low - floor, high - floor)
    unit = 100.0 if higher_is_better else 1.0  # points
    low, high = unit * bounds[0], unit * bounds[1]
    return GateCheck(metric.name, "", verdict, value, None, unit * lost, low, high, floor, rows, level, None, needed, words)


def _with_interval(metric: Metric, costs: Costs, z: float) -> tuple[float, float, float, int]:
    """By Wilson for shares of rows, by Hanley and McNeil for the AUC, else by the standard error of the mean."""
    value = metric.of(costs)
    if metric.name == "auc":
        truth = costs[TRUTH]
        yes, no = float((truth > 0).sum()), float((truth <= 0).sum())
        first, second = value / (2 - value), 2 * value**2 / (1 + value)
        spread = value * (1 - value) + (yes - 1) * (first - value**2) + (no - 1) * (second - value**2)
        error = math.sqrt(max(spread, 0.0) / max(yes * no, 1.0))
        return value, max(0.0, value - z * error), min(1.0, value + z * error), len(costs[SCORE])
    if metric.unit == "points":
        n = len(costs[WRONG])
        middle = (value + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(value * (1 - value) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return value, middle - half, middle + half, n
    column = costs[LOSS] if metric.unit == "loss" else costs[SQUARED]
    n = len(column)
    error = float(column.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    mean = float(column.mean())
    if metric.unit == "loss":
        return mean, mean - z * error, mean + z * error, n
    return value, math.sqrt(max(mean - z * error, 0.0)), math.sqrt(mean + z * error), n
