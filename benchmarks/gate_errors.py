"""With the rows it asks for, a gate fails under 5% of 500 equal models, and misses under 20% of 500 that lose a point.

Pairs are made: the old model is wrong in a share of the rows, both differ in a share, and the new one is worse by nothing or by
a point. The rows are those with which a gate has a power of 80% for an equal model at a margin of half a point.
"""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import torch
from evidence import Bar, Report, options

from flatout.measure.row_proof import check_shares
from flatout.pipelines.gate.checks import FAIL, PASS, compared
from flatout.shrinking.metric import WRONG, Costs, Metric

PAIRS, MARGIN, POINT = 500, 0.5, 0.01
WRONG_SHARES, FLIPS = (0.05, 0.15, 0.3), (0.02, 0.06)
ACCURACY = Metric("accuracy", "points", MARGIN)


def pair(rows: int, wrong: float, flips: float, lost: float, seed: int) -> tuple[Costs, Costs]:
    drawn = np.random.default_rng([seed, rows])
    old, other = (drawn.random(rows) < wrong).astype(np.float64), drawn.random(rows)
    new = old.copy()
    new[(old == 0) & (other < (flips / 2 + lost) / (1 - wrong))] = 1.0
    new[(old == 1) & (other < flips / 2 / wrong)] = 0.0
    return {WRONG: new}, {WRONG: old}


def rows_asked_for(flips: float) -> int:
    """What a gate with few rows says that a verdict takes."""
    few = 400
    found = check_shares(round(few * flips / 2), round(few * flips / 2), few, MARGIN / 100, 1, ACCURACY.show)
    return int(found.figures["rows_needed"])


def main() -> int:
    asked = options(__doc__, 1).parse_args()
    pairs = 20 if asked.quick or asked.smoke else PAIRS
    report = Report("gate_errors", (__doc__ or "").strip(), torch.device("cpu"))
    shares: dict[str, list[float]] = {
        "equal models that fail": [],
        "a point lost that passes": [],
        "equal models that pass": [],
    }
    cases = []
    for wrong, flips in product(WRONG_SHARES, FLIPS):
        rows = rows_asked_for(flips)
        equal = [compared(ACCURACY, *pair(rows, wrong, flips, 0.0, seed), "", 1, 1).verdict for seed in range(pairs)]
        worse = [compared(ACCURACY, *pair(rows, wrong, flips, POINT, seed), "", 1, 1).verdict for seed in range(pairs)]
        found = {
            "equal models that fail": equal.count(FAIL) / pairs,
            "a point lost that passes": worse.count(PASS) / pairs,
            "equal models that pass": equal.count(PASS) / pairs,
        }
        cases.append(
            {"wrong": wrong, "differ": flips, "rows": rows, **found, "a point lost that fails": worse.count(FAIL) / pairs}
        )
        for name, share in found.items():
            shares[name].append(share)
        print(f"wrong {wrong:.0%}, differ {flips:.0%}, {rows:,} rows: {found}", file=sys.stderr, flush=True)
    report.conditions = {"cases": cases, "pairs of a case": pairs, "margin in points": MARGIN}
    for name, values in shares.items():
        report.arm(name, "share", values)
    report.bars = [
        Bar("equal models that fail, largest share", max(shares["equal models that fail"]), 0.05, at_least=False),
        Bar("a point lost that passes, largest share", max(shares["a point lost that passes"]), 0.2, at_least=False),
        Bar("a point lost that does not fail, largest share",
            max(1 - one["a point lost that fails"] for one in cases), 0.2, at_least=False),
    ]  # fmt: skip
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
