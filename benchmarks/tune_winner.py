"""The winner of a study, trained once more, scores within the interval that the study states: in 45 of 50 studies."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _rate_cases import adult, bank, california
from evidence import Bar, Report, options

import flatout as fo
from flatout.recipe.load import with_overrides
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.layout import SERIAL, Layout
from flatout.tuning.training.trainers import Trainers

SEEDS = 40  # of the spread: the middle 95% of the scores of so many trainings of the winner
_FIRST_SEED = 5_000_000  # none of a study's own; each study has others, as one unlucky seed in all of them would count often


@dataclass(frozen=True)
class Case:
    name: str
    data: Callable[[], Any]
    objective: str
    batch: int
    steps: int


CASES = (
    Case("digits", lambda: {"digits": None, "holdout": 0.4}, "classify", 64, 120),
    Case("adult", adult, "classify", 128, 150),
    Case("bank", bank, "classify", 128, 150),
    Case("california", california, "regress", 128, 150),
    Case("digits, few rows", lambda: {"digits": None, "holdout": 0.7}, "classify", 32, 80),
)
MODELS = ({"hidden": [16]}, {"hidden": [32, 32]}, {"hidden": [64], "norm": True}, {"hidden": [32], "dropout": 0.2})
OPTIMIZERS = ("adamw", "sgd", "adam")


def recipe(number: int) -> fo.Recipe:
    """Of a study: another seed, model and optimizer each."""
    case = CASES[number % len(CASES)]
    return fo.Recipe(
        data=case.data(), model={"mlp": MODELS[number // 5 % len(MODELS)]}, objective=case.objective, batch=case.batch,
        optimizer=OPTIMIZERS[number // 3 % len(OPTIMIZERS)], lr=1e-2, budget=f"{case.steps} steps", seed=number,
        settings={"device": "cpu"}, name=f"study {number}",
    )  # fmt: skip


def scores_of(base: fo.Recipe, overrides: list[str], first: int, count: int) -> list[float]:
    """On the rows that judge, of trainings with other seeds than the study used."""
    trainers = Trainers(lambda more: with_overrides(base, more), None)
    try:
        ones = [TrialCandidate(place, with_overrides(base, [*overrides, f"seed={first + place}"])) for place in range(count)]
        found = trainers.train(ones, 0, _steps_of(base), Layout(SERIAL, threads=1), "judge")
        return [score for score in found.values() if not isinstance(score, str)]
    finally:
        trainers.close()


def _steps_of(base: fo.Recipe) -> int:
    return int(str(base.budget).split()[0])


def judged(number: int, seeds: int, trials: int) -> dict[str, Any]:
    base = recipe(number)
    with tempfile.TemporaryDirectory(prefix="tune_winner-") as folder:
        study = fo.tune(base, {"lr": "1e-3..1e-1", "weight_decay": "0,1e-4..1e-1"}, trials=trials, seed=number,
                        runs=Path(folder), cache=Path(folder) / "cache")  # fmt: skip
        result = study.result
    scores = scores_of(base, result["winner"]["overrides"], _FIRST_SEED + 1000 * number, 1 + seeds)
    once, others = scores[0], scores[1:]
    again = result["again"]
    spread = float(np.quantile(others, 0.975) - np.quantile(others, 0.025))
    width = again["high"] - again["low"]
    return {
        "study": number, "case": CASES[number % len(CASES)].name, "metric": result["metric"], "low": again["low"],
        "high": again["high"], "once_more": once, "inside": again["low"] <= once <= again["high"], "spread": spread,
        "inside_of_all": sum(again["low"] <= one <= again["high"] for one in scores) / len(scores),
        "width": width, "width_of_spread": width / max(spread, 1e-12), "seconds": result["seconds"],
        "in_search": result["score_in_search"], "mean_again": again["mean"],
    }  # fmt: skip


def main() -> int:
    parser = options(__doc__, 1)
    parser.add_argument("--studies", type=int, default=50, help="default 50")
    parser.add_argument("--trials", type=int, default=12, help="of each study (default 12)")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    studies, seeds = (2, 4) if trial else (asked.studies, SEEDS)
    torch.set_num_threads(1)
    rows = []
    for number in range(studies):
        row = judged(number, seeds, 4 if trial else asked.trials)
        rows.append(row)
        print(
            f"{number + 1} of {studies}, {row['case']}: {row['metric']} {row['once_more']:.4f} "
            f"{'inside' if row['inside'] else 'OUTSIDE'} [{row['low']:.4f}, {row['high']:.4f}], width "
            f"{row['width_of_spread']:.2f}x the spread of seeds, {row['seconds']:.0f} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    report = Report("tune_winner", (__doc__ or "").strip(), torch.device("cpu"))
    report.conditions = {"studies": rows, "seeds of the spread": seeds}
    report.arm("width of the interval, in spreads of seeds", "x", [row["width_of_spread"] for row in rows])
    report.arm("share of all trainings inside", "share", [row["inside_of_all"] for row in rows])
    inside, limit = sum(row["inside"] for row in rows), -(-len(rows) * 45 // 50)
    report.bars = [
        Bar(f"studies whose winner scored inside its interval, of {len(rows)}", inside, limit),
        Bar("median width, in spreads", statistics.median(row["width_of_spread"] for row in rows), 2.0, at_least=False),
    ]
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
