"""Bees and ants with a backbone that was trained on CIFAR-10 are told apart better than from scratch, p < 0.05."""

from __future__ import annotations

import csv
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _data import real_data
from evidence import Bar, Report, options
from PIL import Image

import flatout as fo

RATES = (3e-4, 1e-3, 3e-3)
PRETRAINED, SCRATCH = "pretrained on CIFAR-10", "from scratch"


@dataclass(frozen=True)
class Sizes:
    """`enlarged`: how often a pixel of CIFAR-10 is repeated in each direction. `tuned`: seeds on which each arm's rate is
    chosen; none of them is measured."""

    model: dict[str, Any]
    pixels: int
    enlarged: int
    first: str
    epochs: str
    tuned: int

    def with_weights(self, run: Path) -> dict[str, Any]:
        return {**self.model, "pretrained": str(run)}


ON_A_CPU = Sizes({"convnet": {"channels": [32, 64, 128], "hidden": 128, "dropout": 0.2}}, 32, 1, "8 epochs", "60 epochs", 3)
ON_A_GPU = Sizes({"torchvision": "resnet18"}, 96, 2, "25 epochs", "25 epochs", 2)


def main() -> int:
    asked = options(__doc__, repeats=12).parse_args()
    short = asked.quick or asked.smoke
    device = torch.device("cuda" if torch.cuda.is_available() and not asked.smoke else "cpu")
    sizes = ON_A_GPU if device.type == "cuda" else ON_A_CPU
    cifar, photos = real_data("cifar10"), real_data("photos/hymenoptera")
    if cifar is None or photos is None:
        print("needs the data sets cifar10 and photos/hymenoptera", file=sys.stderr)
        return 2
    report = Report("finetune", str(__doc__), device)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        listed = _listed(photos, home / "photos.csv")
        backbone = _backbone(cifar, home, sizes, "20 steps" if short else sizes.first, device)
        print(f"CIFAR-10: {backbone.result['metrics']['accuracy']:.3f}", file=sys.stderr, flush=True)
        epochs = "2 epochs" if short else sizes.epochs
        models = {PRETRAINED: sizes.with_weights(backbone.folder.path), SCRATCH: sizes.model}

        def score(arm: str, seed: int, lr: float) -> float:
            run = fo.run(
                data={"images": str(listed), "size": sizes.pixels, "holdout": 0.4, "seed": seed, "normalize": _cifars(backbone),
                      "augment": [{"random_resized_crop": {"scale": [0.4, 1.0]}}, "flip"]},
                model=models[arm], batch=16, lr=lr, budget=epochs, evaluate=None, seed=seed,
                runs=home / "runs", cache=home / "cache", settings={"device": device.type}, planning="off", quiet=True,
                fresh=True,
            )  # fmt: skip
            return float(run.result["metrics"]["accuracy"])

        rates = {arm: _best_rate(arm, score, 1 if short else sizes.tuned) for arm in models}
        seeds = range(100, 100 + (2 if short else asked.repeats))
        found: dict[str, list[float]] = {arm: [] for arm in models}
        for seed in seeds:
            for arm in models:
                found[arm].append(score(arm, seed, rates[arm]))
            print(f"seed {seed}: {', '.join(f'{arm} {found[arm][-1]:.3f}' for arm in models)}", file=sys.stderr, flush=True)
        report.conditions = {
            "model": sizes.model, "pixels": sizes.pixels, "budget of each arm": epochs, "rates": rates,
            "backbone's accuracy on CIFAR-10": backbone.result["metrics"]["accuracy"], "backbone's budget": sizes.first,
            "images of CIFAR-10 that the backbone was trained on": len(_labels(cifar, _batches(cifar))),
            "photos": "60% to train on, 40% to measure; another split, other weights and another order for each seed, the same "
            "for both arms. Each arm's learning rate was chosen on other seeds",
        }  # fmt: skip
    for arm, values in found.items():
        report.arm(arm, "of photos right", values)
    gained = float(np.mean(found[PRETRAINED]) - np.mean(found[SCRATCH]))
    report.bars.append(Bar("mean gain in accuracy", gained, 0.0))
    report.bars.append(Bar("p, paired permutation test", chance(found[PRETRAINED], found[SCRATCH]), 0.05, at_least=False))
    return report.finish(asked)


def chance(better: Sequence[float], other: Sequence[float]) -> float:
    """Exact, two-sided: the share of all exchanges within pairs whose mean difference is as large."""
    differences = np.array(better) - np.array(other)
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    return float((np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9).mean())


def _best_rate(arm: str, score: Any, seeds: int) -> float:
    mean = {lr: float(np.mean([score(arm, seed, lr) for seed in range(seeds)])) for lr in RATES}
    print(f"{arm}: {', '.join(f'lr {lr:g}: {value:.3f}' for lr, value in mean.items())}", file=sys.stderr, flush=True)
    return max(mean, key=lambda lr: mean[lr])


def _batches(cifar: Path) -> list[str]:
    """Files of training images; not all of them fit where little can be carried."""
    return [name for name in ("data_batch_1.png", "data_batch_2.png") if (cifar / name).exists()]


def _labels(cifar: Path, batches: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.array(json.loads((cifar / "train_labels.json").read_text()))[: 10_000 * len(batches)]


def _pixels(cifar: Path, names: Sequence[str], enlarged: int) -> np.ndarray[Any, Any]:
    small = np.concatenate([np.asarray(Image.open(cifar / name)).reshape(-1, 32, 32, 3) for name in names])
    return small.repeat(enlarged, axis=1).repeat(enlarged, axis=2)


def _backbone(cifar: Path, home: Path, sizes: Sizes, budget: str, device: torch.device) -> Any:
    batches = _batches(cifar)
    held: dict[str, Any] = {"holdout": 0.1}
    if (cifar / "test_batch_first5000.png").exists():
        known = np.array(json.loads((cifar / "test_labels.json").read_text()))
        held = {"validation": {"x": _pixels(cifar, ["test_batch_first5000.png"], sizes.enlarged), "y": known}}
    augment: list[Any] = ["flip", {"crop": 4 * sizes.enlarged}]
    data = fo.data.arrays(
        _pixels(cifar, batches, sizes.enlarged),
        _labels(cifar, batches),
        layout="hwc",
        normalize="auto",
        augment=augment,
        **held,
    )
    return fo.run(
        data=data, model=sizes.model, batch=64, lr=1e-3, budget=budget, evaluate=None, name="cifar",
        runs=home / "runs", cache=home / "cache", settings={"device": device.type}, planning="off", quiet=True,
    )  # fmt: skip


def _cifars(backbone: Any) -> dict[str, Any]:
    """The normalization that the backbone was trained with, for both arms: the arm with its weights would take it by itself."""
    steps = json.loads((backbone.folder.path / "data.json").read_text())["prepare"]
    return dict(next(step["normalize"] for step in steps if "normalize" in step))


def _listed(photos: Path, file: Path) -> Path:
    """All photos of both folders: each seed splits them anew."""
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["path", "label"])
        for photo in sorted(photos.glob("*/*/*.jpg")):
            rows.writerow([photo, photo.parent.name])
    return file


if __name__ == "__main__":
    raise SystemExit(main())
