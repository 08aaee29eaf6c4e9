"""At equal epochs the search of `flatout tune` ends nearer to the best known setting than TPE with Hyperband or ASHA, top-K
after a few epochs and random search, on the 34 tasks of the LCBench surrogate."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _data import real_data
from _lcbench import EPOCHS, KEYS, SPACE, Surrogate, best_known, rows_at, rows_of
from evidence import Bar, Report, options

from flatout.tuning.search.search import TrialSearch
from flatout.tuning.search.trials import RungAnswer
from flatout.tuning.space import space_of

BUDGETS = (10 * EPOCHS, 20 * EPOCHS, 50 * EPOCHS)
OURS = "flatout tune"
DEVELOPED, KEPT = "developed on", "kept"
_TO_THE_END = 0.4  # the share of the budget with which top-K trains its best to the end
_LOST = 100.0  # regret where nothing was trained to the end
SPACE_OF_ALL = space_of(SPACE)


def ours(surrogate: Surrogate, task: str, seed: int, budget: int) -> float:
    """The accuracy at the last epoch of what it returns."""
    search = TrialSearch(SPACE_OF_ALL, total=EPOCHS, higher_is_better=True, seed=seed)
    used, at = 0, dict[int, int]()
    while (rung := search.next()) is not None:
        used += sum(rung.to - at.get(one.number, 0) for one in rung.trials)
        if used > budget:
            raise AssertionError(f"{used} epochs were asked for, of {budget}")
        at.update({one.number: rung.to for one in rung.trials})
        found = surrogate.accuracy(task, rows_at([one.point for one in rung.trials]), rung.to)
        scores = {one.number: float(score) for one, score in zip(rung.trials, found, strict=True)}
        search.tell(RungAnswer(scores, used / budget))
    return max((score for _, score in search.best(1)), default=-_LOST)


def random_search(surrogate: Surrogate, task: str, seed: int, budget: int) -> float:
    units = np.random.default_rng([seed, 1]).random((budget // EPOCHS, len(KEYS)))
    return float(surrogate.accuracy(task, rows_of(SPACE_OF_ALL, units), EPOCHS).max())


def top_after(epochs: int) -> Callable[[Surrogate, str, int, int], float]:
    def search(surrogate: Surrogate, task: str, seed: int, budget: int) -> float:
        best = max(1, int(_TO_THE_END * budget / (EPOCHS - epochs)))
        count = (budget - best * (EPOCHS - epochs)) // epochs
        rows = rows_of(SPACE_OF_ALL, np.random.default_rng([seed, 2]).random((count, len(KEYS))))
        chosen = rows[np.argsort(-surrogate.accuracy(task, rows, epochs), kind="stable")[:best]]
        return float(surrogate.accuracy(task, chosen, EPOCHS).max())

    return search


def with_optuna(hyperband: bool) -> Callable[[Surrogate, str, int, int], float]:
    """Multivariate TPE. Reports only at the epochs at which the pruner decides: same decisions, less time."""

    def search(surrogate: Surrogate, task: str, seed: int, budget: int) -> float:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=seed)
        factor = 3 if hyperband else 4
        pruner = (
            optuna.pruners.HyperbandPruner(min_resource=3, max_resource=EPOCHS, reduction_factor=factor)
            if hyperband
            else optuna.pruners.SuccessiveHalvingPruner(min_resource=3, reduction_factor=factor)
        )
        study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        stops = [epoch for power in range(4) if (epoch := 3 * factor**power) < EPOCHS] + [EPOCHS]
        used, best = 0, -_LOST
        while used < budget:
            trial = study.ask()
            row = np.array([[_suggested(trial, key, SPACE[key]) for key in KEYS]], dtype=np.float64)
            before, score, state = 0, -_LOST, optuna.trial.TrialState.COMPLETE
            for epoch in stops:
                used += epoch - before
                if used > budget:
                    return best
                before, score = epoch, float(surrogate.accuracy(task, row, epoch)[0])
                trial.report(score, epoch)
                if epoch < EPOCHS and trial.should_prune():
                    state = optuna.trial.TrialState.PRUNED
                    break
            if state == optuna.trial.TrialState.COMPLETE:
                best = max(best, score)
                study.tell(trial, score)
            else:
                study.tell(trial, state=state)
        return best

    return search


def _suggested(trial: Any, key: str, written: Mapping[str, Any]) -> float:
    suggest = trial.suggest_int if written.get("whole") else trial.suggest_float
    return float(suggest(key, written["low"], written["high"], log=bool(written.get("log"))))


ARMS: dict[str, Callable[[Surrogate, str, int, int], float]] = {
    OURS: ours,
    "Optuna TPE, Hyperband": with_optuna(hyperband=True),
    "Optuna TPE, ASHA": with_optuna(hyperband=False),
    "top K after 3 epochs": top_after(3),
    "top K after 5 epochs": top_after(5),
    "random search": random_search,
}
SLOW = {name for name in ARMS if name.startswith("Optuna")}


def measured(surrogate: Surrogate, name: str, task: str, budget: int, seeds: int, best: float, parts: Path) -> dict[str, Any]:
    """The regrets of all seeds. Kept in a file, so that a run that was stopped goes on."""
    part = _part(parts, name, budget, task)
    if part.exists():
        found: dict[str, Any] = json.loads(part.read_text())
        if len(found["regrets"]) >= seeds:
            return {"regrets": found["regrets"][:seeds], "seconds": found["seconds"]}
    began_s = time.perf_counter()
    regrets = [best - ARMS[name](surrogate, task, seed, budget) for seed in range(seeds)]
    found = {"regrets": [min(one, _LOST) for one in regrets], "seconds": round((time.perf_counter() - began_s) / seeds, 3)}
    part.write_text(json.dumps(found))
    return found


def _part(parts: Path, name: str, budget: int, task: str) -> Path:
    return parts / f"{name.replace(' ', '_').replace(',', '')}-{budget}-{task}.json"


def p_value(ours: list[float], other: list[float]) -> float:
    """That ours is lower, over data sets (Wilcoxon's signed ranks, one-sided)."""
    from scipy.stats import wilcoxon

    return float(wilcoxon(ours, other, alternative="less").pvalue)


def main() -> int:
    parser = options(__doc__, 1)
    parser.add_argument("--seeds", type=int, default=20, help="of every arm (default 20)")
    parser.add_argument("--optuna-seeds", type=int, nargs=3, default=[20, 20, 20], help="of Optuna's arms, for each budget")
    parser.add_argument("--half", choices=[DEVELOPED, KEPT], help="only these data sets")
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), help="only these")
    parser.add_argument("--parts", type=Path, default=Path("lcbench-parts"), help="where finished parts are kept")
    parser.add_argument(
        "--finished", action="store_true", help="run nothing: report the data sets of which all parts are there"
    )
    asked = parser.parse_args()
    folder = real_data("lcbench")
    if folder is None:
        print("this benchmark needs the LCBench surrogate in $FLATOUT_DATA/lcbench", file=sys.stderr)
        return 2
    surrogate = Surrogate(folder)
    trial = asked.quick or asked.smoke
    asked.parts.mkdir(parents=True, exist_ok=True)
    tasks = list(surrogate.numbers)[: 2 if trial else None]
    rows: list[dict[str, Any]] = []
    for number, task in enumerate(tasks):
        half = KEPT if number % 2 else DEVELOPED
        if asked.half not in (None, half):
            continue
        if asked.finished and not all(
            _part(asked.parts, name, budget, task).exists() for budget in BUDGETS for name in asked.arms or ARMS
        ):
            continue
        best = _best_of(surrogate, task, asked.parts)
        for budget, slow_seeds in zip(BUDGETS[: 1 if trial else None], asked.optuna_seeds, strict=False):
            for name in asked.arms or ARMS:
                seeds = 1 if trial else min(asked.seeds, slow_seeds) if name in SLOW else asked.seeds
                if seeds:
                    found = measured(surrogate, name, task, budget, seeds, best, asked.parts)
                    rows.append({"task": task, "half": half, "budget": budget, "arm": name, "best_known": best, **found})
        print(f"{task} ({half}) done", file=sys.stderr, flush=True)
    report = Report("lcbench", " ".join((__doc__ or "").split()), torch.device("cpu"))
    report.conditions = {"epochs": EPOCHS, "budgets": BUDGETS, "seeds": asked.seeds, "optuna_seeds": asked.optuna_seeds,
                         "data_sets": f"{len({row['task'] for row in rows})} of {len(surrogate.numbers)}"
                         + (" (only finished ones are reported)" if asked.finished else ""),
                         "what": "regret in points of validation accuracy at epoch 52 of the setting that a method returns",
                         "runs": rows}  # fmt: skip
    for half in (DEVELOPED, KEPT):
        for budget in BUDGETS:
            _compare(report, rows, half, budget)
    return report.finish(asked)


def _best_of(surrogate: Surrogate, task: str, parts: Path) -> float:
    part = parts / f"best-{task}.json"
    if not part.exists():
        part.write_text(json.dumps(best_known(surrogate, SPACE_OF_ALL, task)))
    return float(json.loads(part.read_text()))


def _compare(report: Report, rows: list[dict[str, Any]], half: str, budget: int) -> None:
    means: dict[str, list[float]] = {}
    for row in rows:
        if row["half"] == half and row["budget"] == budget:
            means.setdefault(row["arm"], []).append(float(np.mean(row["regrets"])))
    where = f"{budget // EPOCHS} trainings, {half}"
    for name, found in means.items():
        report.arm(f"{name}, {where}", "points", found)
        print(f"{where}: {name}: mean regret {np.mean(found):.3f}", file=sys.stderr)
    if OURS not in means or len(means) == 1:
        return
    others = {name: found for name, found in means.items() if name != OURS}
    best = min(others, key=lambda name: float(np.mean(others[name])))
    ratio = float(np.mean(means[OURS]) / max(float(np.mean(others[best])), 1e-12))
    report.bars.append(Bar(f"mean regret / that of {best}, {where}", ratio, 1.0, at_least=False))
    worst = max((p_value(means[OURS], found) for found in others.values()), default=math.nan)
    report.bars.append(Bar(f"largest p against the others, {where}", worst, 0.01, at_least=False))


if __name__ == "__main__":
    sys.exit(main())
