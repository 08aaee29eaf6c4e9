"""50 steps by 2 and 4 processes as by one, every strategy: float64 AdamW 1e-9, float32 SGD 1e-5, float32 AdamW losses 1e-4."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from evidence import Bar, Report, options
from safetensors.torch import load_file
from torch import nn

import flatout as fo
from flatout.base.events import read_events
from flatout.models.gpt import gpt
from flatout.models.mlp import mlp

ROWS, WINDOW, VOCABULARY, BATCH = 203, 16, 19, 14  # neither 2 nor 4 divides the batch, nor the batch an epoch
MESHES = {
    2: ("data=2", "shard=2", "tensor=2", "pipeline=2", "context=2"),
    4: (
        "data=4",
        "shard=4",
        "tensor=4",
        "pipeline=4",
        "context=4",
        "data=2,shard=2",
        "data=2,tensor=2",
        "shard=2,tensor=2",
        "pipeline=2,data=2",
        "data=2,context=2",
        "shard=2,context=2",
        "pipeline=2,shard=2",
        "pipeline=2,tensor=2",
    ),
}
OPTIMIZERS = {"float64 AdamW": 1e-9, "float32 SGD": 1e-5, "float32 AdamW": 1e-4}  # of the last, the losses
TRAINED = [("gpt", optimizer) for optimizer in OPTIMIZERS] + [("mlp", "float32 SGD"), ("mlp", "float32 AdamW")]


def data_of(model: str) -> fo.Data:
    draw = torch.Generator().manual_seed(0)
    if model == "mlp":
        return fo.data.arrays(torch.randn(ROWS, 8, generator=draw), torch.arange(ROWS) % 3, classes=3, holdout=0.0)
    x = torch.randint(0, VOCABULARY, (ROWS, WINDOW), generator=draw)
    y = (x * 7 + 3) % VOCABULARY
    y[torch.rand(y.shape, generator=draw) < torch.rand(ROWS, 1, generator=draw)] = -100  # rows count for differing numbers
    return replace(fo.data.arrays(x, y, holdout=0.0), vocabulary=VOCABULARY)


def model_of(model: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(1)
    made = mlp((8,), 3, hidden=(16, 12, 8)) if model == "mlp" else gpt(VOCABULARY, WINDOW, layers=4, heads=4, width=16)
    return made.to(dtype)


def train(model: str, optimizer: str, mesh: str, folder: Path, steps: int) -> None:
    dtype = torch.float64 if "64" in optimizer else torch.float32
    chosen: dict[str, Any] = {"optimizer": {"sgd": {"momentum": 0.9}}, "lr": 0.05} if "SGD" in optimizer else {"lr": 3e-3}
    recipe = fo.Recipe(
        data=data_of(model), model=lambda: model_of(model, dtype), batch=BATCH, clip=0.5,
        objective="classify" if model == "mlp" else "next_token", budget=f"{steps} steps", evaluate=None, **chosen,
        settings={"device": "cpu", "log_every": 5, "mesh": mesh, "precision": "fp32", "checkpoint_every": "end"},
    )  # fmt: skip
    runs = folder / (mesh or "alone") / model / optimizer
    fo.run(recipe, runs=runs, fresh=True, cache=folder / "machine", planning="off")  # which is measured once


def losses(runs: Path) -> list[float]:
    (folder,) = runs.iterdir()
    return [event["loss"] for event in read_events(folder / "events.jsonl") if event["kind"] == "step"]


def weights_apart(a: Path, b: Path) -> float:
    one, other = (load_file(next(runs.iterdir()) / "model.safetensors") for runs in (a, b))
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)


def trained_on(mesh: str) -> list[tuple[str, str]]:
    return [one for one in TRAINED if one[0] == "gpt" or "context" not in mesh]  # which has no sequences


def launched(size: int, folder: Path, steps: int, meshes: tuple[str, ...]) -> None:
    asked = json.dumps({"folder": str(folder), "steps": steps, "meshes": meshes})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), __file__]
    subprocess.run([*command, "--worker", asked], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--worker", type=json.loads, help="what each of several processes trains")
    asked = parser.parse_args()
    if asked.worker:
        torch.set_num_threads(1)
        for mesh in asked.worker["meshes"]:
            for model, optimizer in trained_on(mesh):
                train(model, optimizer, mesh, Path(asked.worker["folder"]), asked.worker["steps"])
        return 0
    steps, sizes = (4, [2]) if asked.smoke else (50, list(MESHES))
    report = Report("exact_together", str(__doc__), torch.device("cpu"))
    worst = dict.fromkeys(OPTIMIZERS, 0.0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        launched(1, folder, steps, ("",))
        for size in sizes:
            launched(size, folder, steps, MESHES[size])
            for mesh in MESHES[size]:
                for model, optimizer in trained_on(mesh):
                    alone, there = (folder / which / model / optimizer for which in ("alone", mesh))
                    if optimizer == "float32 AdamW":
                        found = max(abs(a - b) for a, b in zip(losses(alone), losses(there), strict=True))
                    else:
                        found = weights_apart(alone, there)
                    worst[optimizer] = max(worst[optimizer], found)
                    report.arm(f"{model}, {mesh}, {optimizer}", "largest difference", [found])
    report.conditions = {"steps": steps, "rows": ROWS, "batch": BATCH}
    for optimizer, limit in OPTIMIZERS.items():
        what = "losses apart" if optimizer == "float32 AdamW" else "weights apart, of the largest"
        report.bars.append(Bar(f"{optimizer}: {what}, worst of all", worst[optimizer], limit, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
