"""flatout's loop costs under a tenth of a bare PyTorch loop's speed, and is three times as fast as Lightning's, on a CPU."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from evidence import Report, options, take_turns
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import flatout as fo

ROWS, INPUTS, HIDDEN, CLASSES, BATCH = 50_000, 64, 64, 10, 128
LR, WEIGHT_DECAY = 1e-3, 0.01
UNIT = "steps/s"

OURS = "flatout"
BARE_FUSED = "bare slicing loop, fused AdamW"
BARE_DEFAULT = "bare slicing loop, default AdamW"
LOADER = "bare loop over a DataLoader, default AdamW"
LIGHTNING = "Lightning with its DataLoader, default AdamW"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def flatout_arm(x: Tensor, y: Tensor, steps: int, scratch: Path) -> Callable[[], float]:
    """Everything of the real loop: shuffling, schedule, guard against bad steps, log points, events."""
    data = fo.data.arrays(x, y, classes=CLASSES)

    def measure() -> float:
        recipe = fo.Recipe(
            data=data,
            model=network,
            batch=BATCH,
            lr=LR,
            weight_decay=WEIGHT_DECAY,
            budget=f"{steps} steps",
            evaluate=None,
            settings={"device": "cpu"},
        )
        result = fo.run(recipe, runs=scratch / "runs", fresh=True, cache=scratch / "cache").result
        assert result["steps"] == steps
        return float(result["steps"] / result["train_seconds"])

    return measure


def one_step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def bare_arm(x: Tensor, y: Tensor, steps: int, *, fused: bool) -> Callable[[], float]:
    """Rows in a new order each epoch, cut into slices; nothing is logged, counted or checked."""

    def measure() -> float:
        model = network()
        optimizer = AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True if fused else None)
        done = 0
        began_s = time.perf_counter()
        while done < steps:
            order = torch.randperm(ROWS)
            for start in range(0, min(ROWS // BATCH, steps - done) * BATCH, BATCH):
                rows = order[start : start + BATCH]
                one_step(model, optimizer, x[rows], y[rows])
                done += 1
        return steps / (time.perf_counter() - began_s)

    return measure


def loader_arm(x: Tensor, y: Tensor, steps: int) -> Callable[[], float]:
    def measure() -> float:
        model = network()
        optimizer = AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, drop_last=True)
        done = 0
        began_s = time.perf_counter()
        while done < steps:
            for inputs, targets in loader:
                one_step(model, optimizer, inputs, targets)
                done += 1
                if done == steps:
                    break
        return steps / (time.perf_counter() - began_s)

    return measure


def lightning_arm(x: Tensor, y: Tensor, steps: int, scratch: Path) -> Callable[[], float]:
    """Its Trainer with logger, checkpoints, progress bar and summary off, timed from the start of training to its end."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.seconds = 0.0

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return F.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> Optimizer:
            return AdamW(self.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)

        def on_train_start(self) -> None:
            self.seconds = -time.perf_counter()

        def on_train_end(self) -> None:
            self.seconds += time.perf_counter()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    def measure() -> float:
        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=scratch,
        )
        trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, drop_last=True))
        assert trainer.global_step == steps
        return steps / module.seconds

    return measure


def main() -> int:
    asked = options(__doc__, repeats=11).parse_args()
    trial = asked.quick or asked.smoke
    steps, repeats = (200, 2) if trial else (2000, asked.repeats)
    slow_steps = steps // 4  # of the arms that take several times as long
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, INPUTS, generator=generator)
    y = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    report = Report("loop_tax", str(__doc__), torch.device("cpu"))
    report.conditions = {"rows": ROWS, "model": [INPUTS, HIDDEN, CLASSES], "batch": BATCH, "steps": steps}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        arms = {
            OURS: flatout_arm(x, y, steps, scratch),
            BARE_FUSED: bare_arm(x, y, steps, fused=True),
            BARE_DEFAULT: bare_arm(x, y, steps, fused=False),
            LOADER: loader_arm(x, y, slow_steps),
        }
        try:
            arms[LIGHTNING] = lightning_arm(x, y, slow_steps, scratch)
        except ImportError as error:
            print(f"Lightning is left out, it can't be imported: {error}", file=sys.stderr)
        else:
            from lightning import __version__ as lightning_version

            report.conditions["lightning"] = lightning_version
        take_turns(arms, 1)  # threads, caches and the machine's ceilings are there from here on
        for name, values in take_turns(arms, repeats, asked.within).items():
            report.arm(name, UNIT, values)
    report.ratio("flatout over the bare loop with the same optimizer", OURS, BARE_FUSED, at_least=0.90)
    report.ratio("flatout over the bare loop with default AdamW", OURS, BARE_DEFAULT, at_least=1.1)
    if LIGHTNING in arms:
        report.ratio("flatout over Lightning", OURS, LIGHTNING, at_least=3.0)
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
