"""Two processes on a CPU: flatout trains at 0.95x or more of the steps/s of a bare DistributedDataParallel script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from evidence import Report, options, take_turns
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import flatout as fo
from flatout.models.gpt import gpt
from flatout.models.mlp import mlp

PROCESSES, LR, WEIGHT_DECAY = 2, 1e-3, 0.01
VOCABULARY, WINDOW = 128, 64


class Work:
    """A model with its data in memory, the same for both arms."""

    def __init__(self, name: str, steps: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.name, self.steps = name, steps
        if name == "GPT, 64 tokens":
            self.batch = 16
            self.x = torch.randint(0, VOCABULARY, (4096, WINDOW), generator=draw)
            self.y = self.x.roll(-1, 1)
        else:
            self.batch = 1024
            self.x = torch.randn(100_000, 39, generator=draw)
            self.y = torch.randint(0, 2, (100_000,), generator=draw)

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        if self.name == "GPT, 64 tokens":
            return gpt(VOCABULARY, WINDOW, layers=2, heads=4, width=128)
        return mlp((39,), 2, hidden=(512, 256))

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, -2), y.flatten())


def flatout_arm(work: Work, scratch: Path) -> Callable[[], float]:
    def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, float]:
        rows = float(len(batch["x"]))
        return work.loss(model(batch["x"]), batch["y"]) * rows, rows

    data = fo.data.arrays(work.x, work.y, holdout=0.0)
    asked = {"data": data, "model": work.network, "objective": loss_of, "batch": work.batch, "lr": LR, "evaluate": None}
    steps, settings = f"{work.steps} steps", {"device": "cpu", "compile": "off", "deterministic": "off"}

    def measure() -> float:
        recipe = fo.Recipe(**asked, weight_decay=WEIGHT_DECAY, schedule="constant", budget=steps, settings=settings)
        result = fo.run(recipe, runs=scratch / "runs", fresh=True, cache=None, planning="off").result
        return float(result["steps"] / result["train_seconds"])

    return measure


def bare_arm(work: Work) -> Callable[[], float]:
    """Rows in an order that all processes know, each taking its part of every batch; nothing is logged, counted or checked."""
    rank, share = dist.get_rank(), work.batch // PROCESSES

    def measure() -> float:
        model = DistributedDataParallel(work.network(), gradient_as_bucket_view=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
        draw, done = torch.Generator().manual_seed(0), 0
        dist.barrier()
        began_s = time.perf_counter()
        while done < work.steps:
            order = torch.randperm(len(work.x), generator=draw)
            for start in range(0, min(len(order) // work.batch, work.steps - done) * work.batch, work.batch):
                rows = order[start + rank * share : start + (rank + 1) * share]
                optimizer.zero_grad()
                work.loss(model(work.x[rows]), work.y[rows]).backward()
                optimizer.step()
                done += 1
        dist.barrier()
        return work.steps / (time.perf_counter() - began_s)

    return measure


def works(tiny: bool, quick: bool) -> list[Work]:
    sizes = {"tabular MLP": 20 if tiny else 100 if quick else 400, "GPT, 64 tokens": 5 if tiny else 40 if quick else 150}
    return [Work(name, steps) for name, steps in sizes.items()]


def worker(repeats: int, tiny: bool, quick: bool, out: Path) -> None:
    """In each process; both arms use the group that torchrun's variables name."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, list[float]] = {}
    told = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(told)
    for work in works(tiny, quick):
        arms = {f"{work.name}: flatout": flatout_arm(work, Path(told[0])), f"{work.name}: bare script": bare_arm(work)}
        take_turns(arms, 1)
        found |= take_turns(arms, repeats)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    parser = options(__doc__, repeats=9)
    parser.add_argument("--worker", type=Path, help="where the first of several processes writes what it measured")
    asked = parser.parse_args()
    repeats = 2 if asked.smoke else 3 if asked.quick else asked.repeats
    if asked.worker:
        worker(repeats, asked.smoke, asked.quick, asked.worker)
        return 0
    report = Report("ddp_tax", str(__doc__), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        flags = [name for name, given in (("--quick", asked.quick), ("--smoke", asked.smoke)) if given]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES), __file__]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--worker", str(out), "--repeats", str(repeats), *flags], check=True, env=environment)
        for arm, values in json.loads(out.read_text()).items():
            report.arm(arm, "steps/s", values)
    report.conditions = {"processes": PROCESSES, "threads each": 1}
    for work in works(asked.smoke, asked.quick):
        report.ratio(f"{work.name}: flatout of the bare script", f"{work.name}: flatout", f"{work.name}: bare script", 0.95)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
