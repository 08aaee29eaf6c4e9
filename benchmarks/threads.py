"""On idle and on busy cores a run with the planned threads is at least 0.95x as fast as with the best fixed number."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import Report, options, take_turns
from torch import nn

import flatout as fo

PLANNED, ONE, ALL = "planned", "1 thread", "all threads"
UNIT = "samples/s"
BUSY = 2  # processes that compute without end


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def convnet() -> nn.Module:
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 4))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 4))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(8, 64, batch_first=True), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.cells(x)[0][:, -1])
        return found


# name: model, shape of a sample, batch. The last two were not looked at while the choice was built
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "small MLP": (mlp, (20,), 64),
    "convnet": (convnet, (3, 24, 24), 64),
    "wide MLP": (wide, (256,), 256),
    "GRU": (Recurrent, (24, 8), 32),
}


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Started by a shell that ends at once, so that they are no children of this process."""
    spin = ["sh", "-c", f"{sys.executable} -S -c 'while True: pass' </dev/null >/dev/null 2>&1 & echo $!"]
    pids = [int(subprocess.run(spin, capture_output=True, text=True, check=True).stdout) for _ in range(processes)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for pid in pids:
            subprocess.run(["kill", "-9", str(pid)], check=False)


def arm(name: str, seconds: float, threads: int | None, scratch: Path, chosen: list[int]) -> Callable[[], float]:
    model, shape, batch = CASES[name]
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((4096, *shape)).astype(np.float32)
    y = numbers.integers(0, 4, 4096)

    def measure() -> float:
        given: dict[str, Any] = {"settings": {} if threads is None else {"threads": threads}}
        recipe = fo.Recipe(
            data=fo.data.arrays(x, y), model=model, batch=batch, lr=1e-3, budget=f"{seconds} s", evaluate=None, **given
        )
        run = fo.run(recipe, runs=scratch / "runs", cache=scratch / "cache", fresh=True, planning="off", quiet=True)
        if threads is None:
            chosen.append(run.plan.settings.threads)
        return float(run.result["samples"] / run.result["train_seconds"])

    return measure


def main() -> int:
    asked = options(__doc__, repeats=3).parse_args()
    trial = asked.quick or asked.smoke
    report, most = Report("threads", str(__doc__), torch.device("cpu")), torch.get_num_threads()
    seconds, repeats = (0.3, 1) if trial else (2.0, asked.repeats)
    report.conditions = {"busy": f"{BUSY} processes that compute without end", "seconds a run": seconds, "chosen": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in list(CASES)[: 1 if asked.smoke else None]:
            for state, processes in (("idle", 0), ("busy", BUSY)):
                chosen: list[int] = []
                counts = {PLANNED: None, ONE: 1, ALL: most}
                arms = {said: arm(name, seconds, count, Path(folder), chosen) for said, count in counts.items()}
                with load(processes):
                    found = take_turns(arms, repeats)
                medians = {said: report.arm(f"{name}, {state}: {said}", UNIT, found[said]).median for said in counts}
                best = max((ONE, ALL), key=lambda said: medians[said])
                report.conditions["chosen"][f"{name}, {state}"] = chosen
                ours, other = f"{name}, {state}: {PLANNED}", f"{name}, {state}: {best}"
                report.ratio(f"{name}, {state}: {PLANNED} against {best}", ours, other, at_least=0.95)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
