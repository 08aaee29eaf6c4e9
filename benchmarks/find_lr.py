"""A training with the rate of `find-lr` ends within 3% of the loss of the best of 20 rates."""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _rate_cases import CASES, recipe
from evidence import Bar, Report, options

import flatout as fo
from flatout.base.errors import TrainingError

SEEDS = (1, 2)
"""Of the compared trainings: weights, order and dropout that the search, which has seed 0, did not see."""
WORKED_ON, KEPT = "worked on", "kept"
_RANGE = {"sgd": (1e-4, 10.0), "others": (1e-5, 1.0)}


def final_loss(name: str, lr: float, cache: Path, seeds: tuple[int, ...]) -> float:
    """The mean held-out loss after the last step; infinite if a training diverged."""
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="find_lr-") as runs:
            try:
                run = fo.run(recipe(name, lr, seed), runs=runs, cache=cache, planning="off", quiet=True)
            except TrainingError:
                return math.inf
            loss = run.result["metrics"]["loss"]
            found.append(math.inf if loss is None else float(loss))
    return statistics.fmean(found)


def compare(name: str, half: str, cache: Path, points: int, seeds: tuple[int, ...]) -> dict[str, Any]:
    found = fo.find_lr(recipe(name, "auto"), cache=cache)
    low, high = _RANGE["sgd" if "sgd" in name else "others"]
    grid = [float(f"{lr:.6g}") for lr in np.geomspace(low, high, points)]
    sweep = {lr: final_loss(name, lr, cache, seeds) for lr in grid}
    best = min(sweep, key=sweep.__getitem__)
    ours, steepest = (math.inf if lr is None else final_loss(name, lr, cache, seeds) for lr in (found.lr, found.steepest))
    return {
        "case": name, "half": half, "lr": found.lr, "why": found.why, "search_s": round(found.seconds, 1),
        "search_steps": found.steps, "training_steps": found.total_steps, "loss": ours, "best_lr": best,
        "best_loss": sweep[best], "behind": ours / sweep[best] - 1, "steepest_lr": found.steepest,
        "steepest_behind": steepest / sweep[best] - 1, "sweep": {str(lr): _plain(loss) for lr, loss in sweep.items()},
    }  # fmt: skip


def _plain(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def main() -> int:
    parser = options(__doc__, 1)
    parser.add_argument("--half", choices=[WORKED_ON, KEPT], help="only these cases")
    parser.add_argument("--case", type=int, help="only this case, by number from 0")
    parser.add_argument("--parts", type=Path, help="keep each case's result in this folder, and go on from there")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    rows = []
    with tempfile.TemporaryDirectory(prefix="find_lr-cache-") as cache:
        for number, name in enumerate(CASES):
            half = KEPT if number % 2 else WORKED_ON
            if asked.half not in (None, half) or asked.case not in (None, number) or (trial and number):
                continue
            part = None if asked.parts is None else asked.parts / f"{number}.json"
            if part is not None and part.exists():
                row = json.loads(part.read_text())
            else:
                row = compare(name, half, Path(cache), 3 if trial else 20, SEEDS[:1] if trial else SEEDS)
            if part is not None:
                asked.parts.mkdir(parents=True, exist_ok=True)
                part.write_text(json.dumps(row))
            rows.append(row)
            print(f"{name}: lr {row['lr']:.3g}, {row['behind']:+.1%} (best {row['best_lr']:.2g}; steepest "
                  f"{row['steepest_lr']:.2g}, {row['steepest_behind']:+.1%}) in {row['search_s']} s: {row['why']}",
                  file=sys.stderr, flush=True)  # fmt: skip
    if asked.case is not None:
        return 0
    report = Report("find_lr", (__doc__ or "").strip(), torch.device("cpu"))
    report.conditions = {"cases": rows, "seeds": SEEDS, "limit": "30 s", "threads": torch.get_num_threads()}
    for half in (WORKED_ON, KEPT):
        own = [row for row in rows if row["half"] == half]
        if own:
            report.arm(f"loss above the best of the sweep, {half}", "share", [row["behind"] for row in own])
            report.arm(f"the same of the steepest fall alone, {half}", "share", [row["steepest_behind"] for row in own])
    if rows:
        report.arm("seconds of a search", "s", [row["search_s"] for row in rows])
    for half in (WORKED_ON, KEPT):
        within = sum(row["behind"] <= 0.03 for row in rows if row["half"] == half)
        report.bars.append(Bar(f"cases within 3%, of the 6 {half}", within, 5))
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
