"""The examples reach their bars on real data within minutes, on a CPU or on a GPU: accuracy, AUC, loss on rows held out."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from evidence import Report, gpu_or_leave, options

import flatout
from flatout.recipe.load import read_recipe

EXAMPLES = Path(__file__).parent.parent / "examples"
BESIDE = Path(__file__).parent.parent.parent / "shared" / "data"
RATE, TOOK, CPU = "rate of training", "whole run, reading included", "the same in time of the cores"
UNITS = {"accuracy": "of rows", "auc": "area", "loss": "nats", RATE: "samples/s", TOOK: "s", CPU: "s"}


@dataclass(frozen=True)
class Example:
    """An example, how many seeds to train it with, and the least (or, of a loss, the most) that it must reach."""

    name: str
    seeds: int
    bars: dict[str, float]
    splits: bool = False  # has no validation set of its own: each seed holds out other rows
    quick: str = "1 epochs"
    device: str = "cpu"

    def overrides(self, seed: int, trial: bool) -> list[str]:
        split = [f"data.seed={seed}"] if self.splits else []
        return [f"seed={seed}", *split, *([f"budget={self.quick}"] if trial else [])]


ALL = (
    Example("adult", 5, {"accuracy": 0.85, "auc": 0.905}),
    Example("bank", 5, {"auc": 0.78}, splits=True),
    Example("covertype", 2, {"accuracy": 0.90}, splits=True),
    Example("fashion_mnist", 2, {"accuracy": 0.92}, quick="50 steps"),
    Example("shakespeare", 2, {"loss": 1.9}, quick="20 steps"),
    Example("shakespeare_gpu", 5, {"loss": 1.48}, quick="20 steps", device="cuda"),
)


def train(example: Example, data: Path, seed: int, trial: bool) -> dict[str, float]:
    """One run from the recipe file to the end: the final metrics (of no chosen step), and what it took."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").symlink_to(data.resolve())
        recipe = Path(shutil.copy(EXAMPLES / f"{example.name}.yaml", folder))
        began_s, cpu_s = time.perf_counter(), time.process_time()
        asked = read_recipe(recipe, example.overrides(seed, trial), {"device": example.device})
        done = flatout.run(asked, runs=Path(folder) / "runs")
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        result: dict[str, Any] = done.result
    found = {metric: result["metrics"][metric] for metric in example.bars}
    shown = ", ".join(f"{metric} {value:.4f}" for metric, value in found.items())
    print(f"{example.name}, seed {seed}: {shown}, {took_s:.0f} s ({cpu_s:.0f} s of CPU)", file=sys.stderr, flush=True)
    return {**found, RATE: result["samples_per_s"], TOOK: took_s, CPU: cpu_s}


def add(report: Report, example: Example, runs: Sequence[dict[str, float]]) -> None:
    for measure in runs[0]:
        report.arm(_arm(example, measure), UNITS[measure], [run[measure] for run in runs])
    for metric, limit in example.bars.items():
        report.bar(f"{example.name}.yaml, {metric}", _arm(example, metric), limit, at_least=metric != "loss")


def _arm(example: Example, measure: str) -> str:
    return f"{example.name}: {measure}"


def main() -> int:
    parser = options(__doc__, repeats=5)
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("FLATOUT_DATA", BESIDE)), help="folder of the data sets"
    )
    parser.add_argument("--gpu", action="store_true", help="the examples that are for a GPU")
    parser.add_argument("--only", nargs="+", choices=[example.name for example in ALL], help="these examples")
    asked = parser.parse_args()
    if not asked.data.is_dir():
        parser.error(f"no data at {asked.data}: --data names the folder with adult/, covertype/ and the others")
    trial = asked.quick or asked.smoke
    device = gpu_or_leave(smoke=False) if asked.gpu else torch.device("cpu")
    report = Report("quality", str(__doc__), device)
    report.conditions = {"load_before": os.getloadavg()}
    for example in ALL:
        if example.device == device.type and (asked.only is None or example.name in asked.only):
            seeds = range(1 if trial else min(asked.repeats, example.seeds))
            report.conditions[example.name] = (EXAMPLES / f"{example.name}.yaml").read_text()
            add(report, example, [train(example, asked.data, seed, trial) for seed in seeds])
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
