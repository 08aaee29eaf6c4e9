"""The layout estimator against published runs: memory within 15% and rate within 25%, on rows that it was not fitted on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from _published_layouts import FITTED, GIB, MEMORY_BAR, RATE_BAR, ROWS, Row, foretell
from evidence import Bar, Report, options

from flatout.measure.stats import summarize
from flatout.plan.layouts import constants
from flatout.plan.layouts.timing import Constants

ROUNDS, HALVINGS = 12, 40
EAGER, COMPILED, FLOAT8, H200 = FITTED


def solve(rate: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """The value at which a rate that grows with it is the wanted one."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle) < wanted else (low, middle)
    return (low + high) / 2


def fit() -> dict[str, float]:
    """Four constants of time, each from the row that depends on it most, in turns until all four rows are met."""
    found, power = Constants(), constants.POWER_500W

    def rate(row: Row, **tried: float) -> Callable[[float], float]:
        name = next(iter(tried))
        return lambda value: foretell(row, replace(found, **{name: value}), power).per_device

    for _ in range(ROUNDS):
        found = replace(found, product_share=solve(rate(H200, product_share=0), H200.rate, 0.2, 1.0))
        power = solve(partial(_rate_at, found), COMPILED.rate, 0.3, 1.0)
        found = replace(found, float8_gain=solve(rate(FLOAT8, float8_gain=0), FLOAT8.rate, 1.0, 2.0))
        found = replace(found, eager_traffic=solve(rate(EAGER, eager_traffic=0), EAGER.rate, 0.2, 1.5))
    held = [row for row in FITTED if row.memory_gib is not None and not row.scored_memory]
    reserved = summarize([(row.memory_gib or 0) * GIB / foretell(row).memory.used for row in held]).median
    return {
        "PRODUCT_SHARE": found.product_share,
        "POWER_500W": power,
        "FLOAT8_GAIN": found.float8_gain,
        "EAGER_TRAFFIC": found.eager_traffic,
        "RESERVED": reserved,
    }


def _rate_at(found: Constants, power: float) -> float:
    return foretell(COMPILED, found, power).per_device


def scored(row: Row) -> dict[str, Any]:
    found = foretell(row)
    memory = found.memory.reserved / GIB
    return {
        "source": row.source,
        "note": row.note,
        "fitted_on": row.fits,
        "rate_published": row.rate,
        "rate_predicted": round(found.per_device, 1),
        "rate_error": round(found.per_device / row.rate - 1, 4),
        "memory_published_gib": row.memory_gib,
        "memory_predicted_gib": round(memory, 2),
        "memory_error": None if row.memory_gib is None else round(memory / row.memory_gib - 1, 4),
        "communication_share": round(found.times.communication_share, 4),
    }


def main() -> int:
    asked = options(__doc__, repeats=1).parse_args()
    report = Report("layouts", str(__doc__), torch.device("cpu"))
    fitted = fit()
    used = {name: getattr(constants, name) for name in fitted}
    rows = {row.name: scored(row) for row in ROWS}
    rates = [abs(rows[row.name]["rate_error"]) for row in ROWS if row.scored_rate]
    memories = [abs(rows[row.name]["memory_error"]) for row in ROWS if row.scored_memory]
    report.conditions = {"rows": rows, "fitted_anew": {k: round(v, 4) for k, v in fitted.items()}, "constants": used}
    report.arm("error of the rate, rows not fitted on", "of the published", rates)
    report.arm("error of memory, rows not fitted on", "of the published", memories)
    report.bars += [
        Bar("largest error of a rate", max(rates), RATE_BAR, at_least=False),
        Bar("largest error of memory", max(memories), MEMORY_BAR, at_least=False),
        Bar("rows with the rate within the bar, share", sum(e <= RATE_BAR for e in rates) / len(rates), 1.0),
        Bar("rows with memory within the bar, share", sum(e <= MEMORY_BAR for e in memories) / len(memories), 1.0),
        Bar(
            "constants off from what a fit finds now",
            max(abs(used[k] / v - 1) for k, v in fitted.items()),
            0.005,
            at_least=False,
        ),
    ]
    for name, row in rows.items():
        memory = "" if row["memory_error"] is None else f"{row['memory_published_gib']:>7} GiB {row['memory_error']:+6.1%}"
        mark = f"fitted: {row['fitted_on']}" if row["fitted_on"] else ""
        print(f"{name:46} {row['rate_published']:>8} {row['rate_predicted']:>8} {row['rate_error']:+6.1%}  {memory:21} {mark}")
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
