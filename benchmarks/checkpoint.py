"""Saving a checkpoint blocks the loop for under 5% of the save; on an H200 a save costs training under 10% of its length."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from evidence import Report, options

import flatout as fo
from flatout.base.events import Event


@dataclass(frozen=True)
class Task:
    recipe: fo.Recipe
    steps_a_save: int


@dataclass(frozen=True)
class Window:
    """The loop between two log points."""

    began_s: float
    ended_s: float
    steps: int

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


@dataclass(frozen=True)
class Save:
    step: int
    began_s: float
    ended_s: float
    blocked_s: float
    size_bytes: int

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s

    def overlaps(self, window: Window) -> bool:
        return window.began_s < self.ended_s and window.ended_s > self.began_s


def mlp_task(saves: int, tiny: bool) -> Task:
    """25 million weights on a CPU: with AdamW's two moments 300 MB of state."""
    width, every = (256, 10) if tiny else (3456, 40)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 512, generator=generator)
    y = torch.randint(0, 10, (4096,), generator=generator)
    recipe = fo.Recipe(
        data=fo.data.arrays(x, y, classes=10),
        model={"mlp": {"hidden": [width, width, width]}},
        batch=32,
        lr=1e-4,
        budget=f"{every * (saves + 1)} steps",
        evaluate=None,
        settings={"device": "cpu", "checkpoint_every": f"{every} steps", "log_every": 1},
    )
    return Task(recipe, every)


def gpt2_task(saves: int, tiny: bool, folder: Path) -> Task:
    """GPT-2 124M on a GPU: 1.5 GB of state. Log points every few steps, so that the loop itself hardly waits for the device."""
    every = 40 if tiny else 80
    tokens = np.random.default_rng(0).integers(0, 50257, 4_000_000, dtype=np.uint16)
    tokens.tofile(folder / "tokens.bin")
    recipe = fo.Recipe(
        data=fo.data.text(folder / "tokens.bin", encoding="tokens", vocabulary=50257, window=1024, holdout=0.0),
        model={"gpt": {"layers": 12, "heads": 12, "width": 768}},
        objective={"next_token": {"ignore": None}},
        batch=64,
        lr=6e-4,
        clip=1.0,
        budget=f"{every * (saves + 1)} steps",
        evaluate=None,
        settings={
            "device": "cuda",
            "tier": "resident",
            "precision": "bf16",
            "compile": "on",
            "graph": False,
            "attention": "cudnn",
            "checkpoint_every": f"{every} steps",
            "log_every": 4,
        },
    )
    return Task(recipe, every)


def windows_of(events: Sequence[Event]) -> list[Window]:
    """The first one holds warming up and is left out."""
    points = [(event["t"], event["step"]) for event in events if event["kind"] == "step"]
    return [Window(t0, t1, step1 - step0) for (t0, step0), (t1, step1) in pairwise(points) if step1 > step0][1:]


def saves_of(events: Sequence[Event]) -> list[Save]:
    return [
        Save(event["step"], event["t"] - event["seconds"], event["t"], event["blocked_s"], event["bytes"])
        for event in events
        if event["kind"] == "checkpoint_saved"
    ]


def measure(report: Report, task: Task, scratch: Path) -> None:
    events: list[Event] = []
    runs, cache = scratch / "runs", scratch / "cache"
    result: dict[str, Any] = fo.run(task.recipe, runs=runs, cache=cache, observers=[events.append]).result
    windows, saves = windows_of(events), saves_of(events)
    last = result["steps"]
    beside = [save for save in saves if 0 < save.step < last]  # the first has no optimizer state, the last no loop beside it
    calm = [window for window in windows if not any(save.overlaps(window) for save in saves)]
    if len(beside) < 2 or len(calm) < 2:
        raise RuntimeError(f"{len(beside)} saves beside the loop, {len(calm)} windows without one: too few, save less often")
    calm_step_s = median(window.seconds / window.steps for window in calm)
    busy = [[window for window in windows if save.overlaps(window)] for save in beside]
    # All windows that a save touches, waits and copies included, against as many steps without one.
    lost_s = [sum(w.seconds - w.steps * calm_step_s for w in touched) for touched in busy]
    report.conditions |= {"state_bytes": beside[-1].size_bytes, "steps_a_save": task.steps_a_save}
    report.conditions |= {"recipe": task.recipe.written() | {"data": "random"}, "checkpoints": result["checkpoints"]}
    report.arm("steps/s without a save", "steps/s", [window.steps / window.seconds for window in calm])
    report.arm("steps/s while one is written", "steps/s", [sum(w.steps for w in t) / sum(w.seconds for w in t) for t in busy])
    report.arm("a save, from asking to the renamed folder", "s", [save.seconds for save in beside])
    report.arm("loop blocked, share of the save", "", [save.blocked_s / save.seconds for save in beside])
    report.arm("time lost, share of the save", "", [lost / save.seconds for lost, save in zip(lost_s, beside, strict=True)])


def main() -> int:
    parser = options(__doc__, repeats=6)
    parser.add_argument("--cpu", action="store_true", help="the CPU's task, though there is a GPU")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    saves = 3 if trial else asked.repeats
    on_gpu = torch.cuda.is_available() and not asked.cpu and not asked.smoke
    report = Report("checkpoint", str(__doc__), torch.device("cuda" if on_gpu else "cpu"))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        measure(report, gpt2_task(saves, trial, scratch) if on_gpu else mlp_task(saves, asked.smoke), scratch)
    report.bar("loop blocked", "loop blocked, share of the save", 0.05, at_least=False)
    if on_gpu:  # where two cores train and write, the writer can only take from the loop
        report.bar("time lost during a save", "time lost, share of the save", 0.10, at_least=False)
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
