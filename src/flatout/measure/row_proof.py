"""Is a changed model as good as its source, row by row? A test of non-inferiority on differences of the same rows.

Rows that are right or wrong: Tango's score test for paired shares, which also holds when few or no rows differ (Tango,
Statistics in Medicine 17, 1998). Other costs, such as a loss: the mean of the differences and its standard error.
The candidate passes if the upper bound of what it gives up is below the margin. Several looks at the same rows share the
error: the k-th look is made at level 0.05 / (k (k + 1)), which adds up to 0.05 for any number of looks. `among`: of so many
comparisons at once, which share it too (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from flatout.measure.paired import MIN_POWER, NOT_ENOUGH
from flatout.measure.stats import Values

LEVEL = 0.05
_DRAWS, _SEED = 2000, 20_011
_LEAST_ROWS = 30  # for a standard error
_SHARES = "Tango's score test of non-inferiority for paired shares, one-sided"
_MEANS = "z test of non-inferiority on paired differences, one-sided"

Show = Callable[[float], str]


@dataclass(frozen=True)
class RowCheck:
    """`power`: how likely an equal candidate passes. `level`: of this look. `is_open`: more rows could settle it."""

    passed: bool
    why: str
    test: str
    margin: float
    n: int
    power: float
    level: float
    is_open: bool = False
    figures: dict[str, float] = field(default_factory=dict)


def level_of(look: int, among: int = 1) -> float:
    """Of the `look`-th look at the same rows, from 1."""
    return LEVEL / (look * (look + 1) * among)


def check_shares(worse: int, better: int, rows: int, margin: float, look: int, show: Show, among: int = 1) -> RowCheck:
    """`worse`: rows that the source has right and the candidate wrong; `better`: the other way round."""
    level = level_of(look, among)
    z = NormalDist().inv_cdf(1 - level)
    upper, lower = _tango_bound(worse, better, rows, z), -_tango_bound(better, worse, rows, z)
    flips = (worse + better + 0.5) / (rows + 0.5)

    def power(n: int) -> float:
        return _shares_power(flips, n, margin, z)

    figures = {"difference": (worse - better) / rows, "lower_bound": lower, "upper_bound": upper}
    figures |= {"worse": float(worse), "better": float(better)}
    passes = bool(_tango(np.array(worse), np.array(better), rows, margin) < -z)
    strength = power(rows)
    if not passes and strength < MIN_POWER:
        figures["rows_needed"] = float(_rows_for(power, rows))
        figures["margin_shown"] = _margin_for(flips, rows, margin, z)
    return _verdict(passes, figures, margin, rows, strength, level, _SHARES, show)


def check_means(differences: Values, margin: float, look: int, show: Show, among: int = 1) -> RowCheck:
    """`differences`: the candidate's cost minus the source's, row by row."""
    n = len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return check_estimate(float(differences.mean()), error, n, margin, look, show, among)


def check_estimate(
    difference: float, error: float, rows: int, margin: float, look: int, show: Show, among: int = 1
) -> RowCheck:
    """`error`: the standard error of `difference`, the cost that is given up."""
    level = level_of(look, among)
    normal = NormalDist()
    z = normal.inv_cdf(1 - level)
    upper, lower = difference + z * error, difference - z * error
    power = (normal.cdf(margin / error - z) if error > 0 else 1.0) if rows >= _LEAST_ROWS else 0.0
    wanted = rows * (error * (z + normal.inv_cdf(MIN_POWER)) / margin) ** 2 if margin > 0 else math.inf
    needed = float(math.ceil(max(_LEAST_ROWS, wanted))) if math.isfinite(wanted) else math.inf
    figures = {"difference": difference, "lower_bound": lower, "upper_bound": upper, "standard_error": error}
    figures |= {"rows_needed": needed, "margin_shown": error * (z + normal.inv_cdf(MIN_POWER))}
    passes = rows >= _LEAST_ROWS and math.isfinite(upper) and upper < margin
    return _verdict(passes, figures, margin, rows, power, level, _MEANS, show)


def _verdict(
    passes: bool, figures: dict[str, float], margin: float, rows: int, power: float, level: float, test: str, show: Show
) -> RowCheck:
    lost, lower, upper = figures["difference"], figures["lower_bound"], figures["upper_bound"]
    is_open = False
    if passes:
        most = f"at most {show(max(upper, 0.0))} lost ({1 - level:.1%})"
        why = f"{_lost(lost, show)}, {most}; margin {show(margin)}, n={rows:,}, power {power:.0%}"
    elif not math.isfinite(lost):
        why = "its outputs are not finite"
    elif lower > margin:
        why = f"loses {show(lost)}, at least {show(lower)} ({1 - level:.1%}); margin {show(margin)}, n={rows:,}"
    elif power < MIN_POWER:
        is_open = True
        needed = figures["rows_needed"]
        takes = f"it takes about {needed:,.0f}" if math.isfinite(needed) else "no number of rows is enough for a margin of 0"
        shown = figures["margin_shown"]
        able = f"; these rows can show {show(shown)}" if math.isfinite(shown) and rows >= _LEAST_ROWS else ""
        why = f"{NOT_ENOUGH}: {rows:,} rows can't show a margin of {show(margin)}; {takes}{able} ({_lost(lost, show)} so far)"
    else:
        why = f"{_lost(lost, show)}, but it may lose up to {show(upper)} ({1 - level:.1%}); margin {show(margin)}, n={rows:,}"
    return RowCheck(passes, why, test, margin, rows, power, level, is_open, figures)


def _lost(lost: float, show: Show) -> str:
    if lost == 0:
        return "loses nothing"
    return f"loses {show(lost)}" if lost > 0 else f"gains {show(-lost)}"


def _tango(worse: Values, better: Values, rows: int, margin: float) -> Values:
    """The score statistic of `worse - better` shares against `margin`."""
    a = 2.0 * rows
    b = -worse - better + (2.0 * rows - worse + better) * margin
    c = -better * margin * (1 - margin)
    share = (np.sqrt(np.maximum(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = rows * (2 * share + margin * (1 - margin))
    return (worse - better - rows * margin) / np.sqrt(np.maximum(variance, 1e-300))  # type: ignore[no-any-return]


def _tango_bound(worse: int, better: int, rows: int, z: float) -> float:
    """The largest difference that is not rejected."""
    low, high = (worse - better) / rows, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _tango(np.array(worse), np.array(better), rows, middle) < -z else (middle, high)
    return high


def _shares_power(flips: float, rows: int, margin: float, z: float) -> float:
    """How often an equal candidate passes whose answers differ on this share of the rows."""
    if margin <= 0:
        return 0.0
    draw = np.random.default_rng(_SEED)
    worse, better = draw.poisson(flips * rows / 2, (2, _DRAWS)).astype(np.float64)
    return float((_tango(worse, better, rows, margin) < -z).mean())


def _margin_for(flips: float, rows: int, margin: float, z: float) -> float:
    """The smallest margin that so many rows can show, to about 3%."""
    high = margin
    while _shares_power(flips, rows, high, z) < MIN_POWER:
        high *= 2
        if high > 0.5:
            return math.inf
    low = high / 2
    while high > low * 1.03:
        middle = (low + high) / 2
        low, high = (low, middle) if _shares_power(flips, rows, middle, z) >= MIN_POWER else (middle, high)
    return high


def _rows_for(power: Callable[[int], float], rows: int) -> float:
    """The fewest rows with enough power, to about 3%."""
    high = max(rows, _LEAST_ROWS)
    while power(high) < MIN_POWER:
        high *= 2
        if high > 10**9:
            return math.inf
    low = 1
    while high > low * 1.03 + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= MIN_POWER else (middle, high)
    return high
