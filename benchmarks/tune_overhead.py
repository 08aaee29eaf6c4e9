"""At most 5% of the time of a study is not training, in studies with two minutes of training or more."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from evidence import Report, options

import flatout as fo

LEAST_TRAINING_S = 120.0
LIMIT = 0.05
CASES = {
    "digits, CNN": """\
data: {digits: null, holdout: 0.3}
model: {convnet: {channels: [16, 32], hidden: 64}}
batch: 64
lr: 3e-3
budget: 10 epochs
settings: {device: cpu}
""",
    "digits, MLP": """\
data: {digits: null, holdout: 0.3}
model: {mlp: {hidden: [64, 64]}}
batch: 32
lr: 3e-3
budget: 40 epochs
settings: {device: cpu}
""",
}


def study_of(written: str, budget: str, seed: int, folder: Path) -> dict[str, Any]:
    recipe = folder / "recipe.yaml"
    recipe.write_text(written)
    study = fo.tune(recipe, budget=budget, seed=seed, runs=folder / "runs", cache=folder / "cache")
    measuring_s = sum(event["seconds"] - event["training_s"] for event in study.folder.events() if event["kind"] == "rung")
    return {**study.result, "around_rungs_s": measuring_s}


def main() -> int:
    parser = options(__doc__, 2)
    parser.add_argument("--budget", default="200 s", help="of each study (default 200 s)")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    budget, repeats = ("15 s", 1) if trial else (asked.budget, asked.repeats)
    report = Report("tune_overhead", (__doc__ or "").strip(), torch.device("cpu"))
    report.conditions = {"budget": budget, "recipes": CASES}
    for name, written in CASES.items():
        found = []
        for seed in range(repeats):
            with tempfile.TemporaryDirectory(prefix="tune_overhead-") as folder:
                found.append(study_of(written, budget, seed, Path(folder)))
            one = found[-1]
            print(
                f"{name}: {one['training_s']:.1f} s of training in {one['seconds']:.1f} s, {one['trials']} trials; "
                f"{one['around_rungs_s']:.1f} s of the rungs measured layouts and waited",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        shares = [1 - one["training_s"] / one["seconds"] for one in found]
        report.arm(f"{name}: time around the training", "share", shares)
        report.arm(f"{name}: training", "s", [one["training_s"] for one in found])
        report.bar(
            f"{name}: share of the time that is not training", f"{name}: time around the training", LIMIT, at_least=False
        )
        report.bar(f"{name}: seconds of training", f"{name}: training", LEAST_TRAINING_S)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
