"""Metrics by name cost no training speed, and evaluation with them under 5% more than with the loss alone."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import Bar, Report, options, take_turns
from torch import Tensor, nn

import flatout as fo
from flatout.engine.evaluation import evaluate
from flatout.measure.stats import compare_paired
from flatout.objectives.build import build
from flatout.objectives.joining import JoinedMeter
from flatout.objectives.metrics import SumMeter, ratio
from flatout.objectives.named.measured import measured
from flatout.objectives.named.parse import named_metrics_of
from flatout.objectives.objective import Meter, Objective

INPUTS, HIDDEN, BATCH, ROWS = 64, (128, 64), 1024, 51_200
TRAINING = "steps/s"


@dataclass(frozen=True)
class Case:
    """Targets of all kinds for the same inputs. `wide` is the width of the model's last layer."""

    name: str
    objective: Any
    wide: int
    targets: Callable[[int, torch.Generator], Tensor]
    names: Sequence[str]
    rows: int = ROWS
    length: int = 0  # of a sequence of tokens


OF_CLASSES = (
    "accuracy", "f1", "f1_per_class", "precision", "recall", "mcc", "confusion_matrix", "log_loss", "calibration_error",
    "auroc", "average_precision",
)  # fmt: skip

OF_LABELS = ("accuracy", "f1", "precision", "recall", "log_loss", "auroc", "average_precision")
OF_NUMBERS = ("mae", "mse", "rmse", "mape", "r2")
OF_TOKENS = ("token_accuracy", "perplexity", "top_k", "f1")


def classes(count: int) -> Callable[[int, torch.Generator], Tensor]:
    return lambda rows, draw: torch.randint(0, count, (rows,), generator=draw)


CASES = (
    Case("classify 2", "classify", 2, classes(2), OF_CLASSES),
    Case("classify 10", "classify", 10, classes(10), (*OF_CLASSES, "top_k")),
    Case("classify 100", "classify", 100, classes(100), (*OF_CLASSES, "top_k")),
    Case("binary", "binary", 1, lambda rows, draw: torch.randint(0, 2, (rows,), generator=draw).float(), OF_CLASSES),
    Case("multilabel 10", "multilabel", 10, lambda rows, draw: (torch.rand(rows, 10, generator=draw) < 0.2).float(), OF_LABELS),
    Case("regress", "regress", 1, lambda rows, draw: torch.randn(rows, 1, generator=draw) + 3, OF_NUMBERS),
    Case("next_token 256", "next_token", 256, classes(256), OF_TOKENS, ROWS // 8, 64),
)  # fmt: skip


def bare(objective: Objective, meter: Callable[[torch.device], Meter]) -> Objective:
    """The same objective, summing the loss and no metric."""
    made = copy.copy(objective)
    object.__setattr__(made, "meter", meter)
    return made


def without_names(objective: Objective) -> Objective:
    """The same objective without metrics of its own, to which names are added as to any other."""
    made = copy.copy(objective)
    object.__setattr__(made, "meter", lambda device: JoinedMeter(_loss_alone(device), device, made))
    return made


def _loss_alone(device: torch.device) -> SumMeter:
    return SumMeter(device, lambda output, batch: {}, lambda total: {"loss": ratio(total["loss"], total["weight"])})


def network(wide: int) -> nn.Module:
    torch.manual_seed(0)
    sizes = (INPUTS, *HIDDEN)
    layers = [one for a, b in pairwise(sizes) for one in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], wide))


class TokenNetwork(nn.Module):
    """Tokens to logits, each from itself alone."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(wide, INPUTS)
        self.rest = network(wide)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.rest(self.embed(x))
        return found


def batches_of(case: Case, rows: int, batch: int, device: torch.device) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    y = case.targets(rows, draw)
    x = torch.randn(rows, INPUTS, generator=draw)
    if case.length:
        rows = rows // case.length
        x = torch.randint(0, case.wide, (rows, case.length), generator=draw)
        y = torch.randint(0, case.wide, (rows, case.length), generator=draw)
        batch = max(1, batch // case.length)
    else:
        signal = torch.randn(INPUTS, generator=draw)
        x[:, 0] += (y.reshape(rows, -1)[:, 0].float() - 1) * signal[0]
    return [{"x": a.to(device), "y": b.to(device)} for a, b in zip(x.split(batch), y.split(batch), strict=True)]


def evaluation_arms(case: Case, rows: int, batch: int, device: torch.device) -> dict[str, Callable[[], float]]:
    """Seconds of one evaluation, with the loss alone, with the objective's metrics, and with each name."""
    own = build(case.objective)
    model = (TokenNetwork(case.wide) if case.length else network(case.wide)).to(device)
    batches = batches_of(case, rows, batch, device)
    asked: dict[str, Objective] = {"loss alone": bare(own, _loss_alone), "own metrics": own}
    for name in case.names:
        asked[name] = measured(without_names(own), named_metrics_of([name], own), None)
    asked["all names"] = measured(without_names(own), named_metrics_of(list(case.names), own), None)

    def arm(objective: Objective) -> Callable[[], float]:
        def measure() -> float:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began_s = time.perf_counter()
            found = evaluate(model, objective, batches, precision="fp32", device=device)
            took_s = time.perf_counter() - began_s
            assert found
            return took_s

        measure()  # kernels are loaded and memory is found
        return measure

    return {f"{case.name}: {name}": arm(objective) for name, objective in asked.items()}


def sorting_arm(case: Case, rows: int) -> Callable[[], float]:
    """Seconds that no exact area under a curve can do without: those of sorting the scores of each class, on a CPU."""
    draw = np.random.default_rng(0)
    scores = draw.standard_normal((case.wide, rows)).astype(np.float32)

    def measure() -> float:
        began_s = time.perf_counter()
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(np.sort, scores))
        return time.perf_counter() - began_s

    return measure


def training_arms(rows: int, steps: int, device: torch.device, scratch: Path) -> dict[str, Callable[[], float]]:
    """Steps/s of a run, its evaluations after each epoch not counted, with metrics by name and without."""
    case = CASES[1]
    batches = batches_of(case, rows, rows, device)
    x, y = batches[0]["x"].cpu(), batches[0]["y"].cpu()
    data = fo.data.arrays(x, y, classes=case.wide, holdout=0.2)

    def arm(names: Sequence[str]) -> Callable[[], float]:
        def measure() -> float:
            recipe = fo.Recipe(
                data=data, model=lambda: network(case.wide), batch=128, lr=1e-3, budget=f"{steps} steps",
                metrics=list(names), settings={"device": device.type},
            )  # fmt: skip
            result = fo.run(recipe, runs=scratch / "runs", fresh=True, cache=scratch / "cache", quiet=True).result
            return float(result["steps"] / result["train_seconds"])

        return measure

    return {f"{TRAINING}, metrics on": arm(case.names), f"{TRAINING}, metrics off": arm(())}


def main() -> int:
    parser = options(__doc__, 9)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"to evaluate (default {ROWS:,})")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"of an evaluation (default {BATCH})")
    parser.add_argument("--only", help="cases whose name has this in it; training: no case, only the steps/s")
    asked = parser.parse_args()
    small = asked.quick or asked.smoke
    device = torch.device("cuda") if torch.cuda.is_available() and not asked.smoke else torch.device("cpu")
    rows, repeats = (5_120, 2) if small else (asked.rows, asked.repeats)
    chosen = [case for case in CASES if asked.only is None or asked.only in case.name]
    name = "metrics-training" if asked.only == "training" else "metrics"
    report = Report(name, (__doc__ or "").strip(), device)
    report.conditions = {
        "model": f"{INPUTS} inputs, hidden {list(HIDDEN)}", "rows": rows, "batch": asked.batch, "precision": "fp32",
        "compared": "seconds of one evaluation of prepared batches, against the loss alone, batch by batch, in the same round",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="metrics-") as scratch:
        training = training_arms(10_240, 300 if small else 3_000, device, Path(scratch))
        for name, values in take_turns(training, 2 if small else repeats).items():
            report.arm(name, TRAINING, values)
        report.ratio("steps/s with metrics over without", f"{TRAINING}, metrics on", f"{TRAINING}, metrics off", 0.99)
        arms = {name: arm for case in chosen for name, arm in evaluation_arms(case, rows, asked.batch, device).items()}
        sorted_cases = [case for case in chosen if "auroc" in case.names and device.type == "cpu"]
        arms |= {f"{case.name}: sorting the scores, alone": sorting_arm(case, rows) for case in sorted_cases}
        for name, values in take_turns(arms, repeats, asked.within).items():
            report.arm(name, "s", values)
    for case in chosen:
        for name in ("own metrics", *case.names, "all names"):
            found = compare_paired(
                report.arms[f"{case.name}: {name}"]["values"], report.arms[f"{case.name}: loss alone"]["values"], prefer="min"
            )
            report.bars.append(
                Bar(
                    f"{case.name}: {name}, over the loss alone",
                    found.ratio,
                    1.05,
                    at_least=False,
                    low=found.low,
                    high=found.high,
                )
            )
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
