"""On six small models a plan that was tried is never slower than plain settings, 1.15x in the median, 2x a DataLoader loop."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _small_models import SMALL, Small
from evidence import Bar, Report, options, take_turns
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

import flatout as fo
from flatout.measure.receipt import Receipt
from flatout.plan.make import checked_plan
from flatout.recipe.build import build_job
from flatout.recipe.load import read_recipe

PLANNED, PLAIN, BARE = "planned", "every knob off", "bare DataLoader loop"
UNIT = "steps/s"
NOT_PINNED = ("log_every", "checkpoint_every", "own")


def written(folder: Path, name: str) -> Path:
    """A recipe file, as a user has one: trials run in processes of their own."""
    path = folder / f"{'-'.join(name.replace(',', '').split())}.py"
    path.write_text(f"from _small_models import recipe as made\n\n\ndef recipe():\n    return made({name!r})\n")
    return path


def ours(path: Path, settings: dict[str, Any], steps: int, scratch: Path) -> Callable[[], float]:
    pins = {name: value for name, value in settings.items() if name not in NOT_PINNED}

    def measure() -> float:
        recipe = read_recipe(path, [f"budget={steps} steps"], pins)
        result = fo.run(recipe, runs=scratch / "runs", fresh=True, cache=scratch / "cache", planning="off").result
        return float((result["steps"] - 1) / result["train_seconds"])

    return measure


def bare(small: Small, steps: int) -> Callable[[], float]:
    """As the tutorials have it."""
    x, y = small.columns(small.rows)
    data = TensorDataset(x, y)

    def measure() -> float:
        torch.manual_seed(0)
        model = small.network().train()
        optimizer = AdamW(model.parameters(), lr=1e-3)
        loader = DataLoader(data, batch_size=small.batch, shuffle=True, drop_last=True)
        batches = iter(loader)
        began_s = time.perf_counter()
        for _ in range(steps):
            try:
                inputs, targets = next(batches)
            except StopIteration:
                batches = iter(loader)
                inputs, targets = next(batches)
            optimizer.zero_grad()
            small.loss(model(inputs), targets).backward()
            optimizer.step()
        return steps / (time.perf_counter() - began_s)

    return measure


def shown(receipt: Receipt) -> dict[str, Any]:
    return {
        "took_s": round(receipt.took_s, 1),
        "stopped": receipt.stopped,
        "kept": [f"{entry.name}={entry.value}" for entry in receipt.entries if entry.verdict == "kept"],
        "rejected": {f"{e.name}={e.value}": e.why for e in receipt.entries if e.verdict == "rejected"},
        "paired": None if receipt.paired is None else {k: receipt.paired[k] for k in ("passed", "n", "margin", "power", "why")},
        "predicted_s": None,
    }


def main() -> int:
    parser = options(__doc__, repeats=9)
    parser.add_argument("--only", nargs="+", choices=list(SMALL), default=list(SMALL))
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    report = Report("plan_cpu", str(__doc__), torch.device("cpu"))
    ratios: dict[str, list[float]] = {PLAIN: [], BARE: []}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name in asked.only:
            small = SMALL[name]
            steps = max(10, small.steps // 10) if asked.smoke else small.steps
            path = written(scratch, name)
            recipe = read_recipe(path)
            plan, receipt = checked_plan(recipe, build_job(recipe), scratch / "cache", limit_s=20 if asked.smoke else 120)
            assert receipt is not None
            report.conditions[name] = {"batch": small.batch, "steps": steps, **shown(receipt)}
            print(f"{name}: {report.conditions[name]['kept']} in {receipt.took_s:.0f} s", file=sys.stderr, flush=True)
            arms = {
                PLANNED: ours(path, plan.settings.to_dict(), steps, scratch),
                PLAIN: ours(path, {**receipt.reference, "tier": plan.settings.tier}, steps, scratch),
                BARE: bare(small, steps),
            }
            take_turns(arms, 1)  # compiling, threads
            for arm, values in take_turns(arms, 2 if trial else asked.repeats, asked.within).items():
                report.arm(f"{name}: {arm}", UNIT, values)
            for other, found in ratios.items():
                report.ratio(f"{name}: planned over {other}", f"{name}: {PLANNED}", f"{name}: {other}", at_least=0.97)
                found.append(report.bars[-1].value)
            del report.bars[-1]  # of the bare loop the median counts
    report.bars.append(Bar("median over models: planned over every knob off", statistics.median(ratios[PLAIN]), 1.15))
    report.bars.append(Bar("median over models: planned over a bare loop", statistics.median(ratios[BARE]), 2.0))
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
