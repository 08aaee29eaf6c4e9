"""256 trials of an MLP 64-256-256-10 at 200k trial-steps/s on one GPU; 64 of a CNN at 1.5x our own runs one after another."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _trials import candidates, group_of, made_rows, rate_of, recipe
from evidence import Bar, Report, gpu_or_leave, options, take_turns

import flatout as fo
from flatout.tuning.training.layout import choose_layout
from flatout.tuning.training.stack import TrialStack

MLP = {"mlp": {"hidden": [256, 256]}}
CNN = {"convnet": {"channels": [32, 64], "hidden": 128}}
SMALL_CNN = {"convnet": {"channels": [2, 4], "hidden": 8}}  # where only the code path counts
LEAST_STEPS_S, LEAST_RATIO = 200_000.0, 1.5
STUDY = "15 s"


def study_rates(device: torch.device, limits: dict[str, Any], steps: int, folder: Path) -> tuple[list[float], dict[str, Any]]:
    """Trial-steps a second of each rung of a real study, with its evaluations and its log; and of all rungs together."""
    np.savez(folder / "rows.npz", **made_rows((64,), 60_000 if device.type == "cuda" else 4_000, 10))
    (folder / "recipe.yaml").write_text(
        "data: {arrays: rows.npz, holdout: 0.1}\nmodel: {mlp: {hidden: [256, 256]}}\nbatch: 256\nlr: 1e-3\n"
        f"budget: {steps} steps\nsettings: {{device: {device.type}}}\n"
    )
    study = fo.tune(
        folder / "recipe.yaml", {"lr": "1e-4..1e-1", "weight_decay": "1e-5..1e-1"}, runs=folder / "runs",
        cache=folder / "cache", **limits,
    )  # fmt: skip
    reached: dict[int, int] = {}
    rates, done, spent_s = [], 0, 0.0
    for event in study.folder.events():
        if event["kind"] == "rung":
            advanced = sum(event["to"] - reached.get(number, 0) for number, _ in event["trials"])
            reached |= {number: event["to"] for number, _ in event["trials"]}
            rates.append(advanced / event["seconds"])
            done, spent_s = done + advanced, spent_s + event["seconds"]
    result = study.result
    about = {"layouts": result["layouts"], "trials": result["trials"], "seconds": result["seconds"],
             "training_s": result["training_s"], "trial-steps": done, "rungs_s": spent_s}  # fmt: skip
    return [done / spent_s], {**about, "rates of the rungs": rates}


def one_after_another(device: torch.device, base: fo.Recipe, steps: int, folder: Path) -> float:
    """Steps a second of our own run, on a GPU with its CUDA graph."""
    graph = {"graph": "on"} if device.type == "cuda" else {}
    one = base.model_copy(update={"budget": f"{steps} steps", "evaluate": None, "settings": {**base.settings, **graph}})
    result = fo.run(one, runs=folder / "runs", cache=folder / "cache", fresh=True, planning="off", quiet=True).result
    return float(result["samples_per_s"]) / base.batch


def main() -> int:
    asked = options(__doc__, 5).parse_args()
    trial = asked.quick or asked.smoke
    device = gpu_or_leave(trial and not torch.cuda.is_available())
    trials, cnn_trials, steps, seconds = (16, 4, 32, 0.2) if trial else (256, 64, 4_000, 2.0)
    repeats, layout_s = (2, 1.0) if trial else (asked.repeats, 20.0)
    report = Report("tune_gpu", (__doc__ or "").strip(), device)
    report.conditions = {"studies": []}
    values = []
    for _ in range(1 if trial else 3):
        with tempfile.TemporaryDirectory(prefix="tune_gpu-") as folder:
            limits = {"trials": trials} if trial else {"budget": STUDY}  # by time, waves are as wide as a stack gains from
            rate, about = study_rates(device, limits, steps, Path(folder))
            values += rate
            report.conditions["studies"].append(about)
            print(f"a study: {rate[0]:,.0f} trial-steps/s", file=sys.stderr, flush=True)
    study = f"MLP 64-256-256-10, batch 256: a study with {trials} trials at once, evaluation and log included"
    report.arm(study, "trial-steps/s", values)
    report.bars.append(Bar(study, report.arms[study]["median"], LEAST_STEPS_S))

    settings = {"device": device.type, "tier": "resident"}
    ones = candidates(recipe((64,), 10, MLP, 256, 60_000 if not trial else 4_000, settings), trials)
    with group_of(ones) as group:
        report.conditions["layout of the MLP"] = asdict(choose_layout(group, ones, layout_s))  # says why, if there is no graph
        stacked = f"MLP 64-256-256-10, batch 256: {trials} in a stack"
        found = take_turns({stacked: rate_of(group, ones, TrialStack, 0, seconds)}, repeats, asked.within)
        report.arm(stacked, "trial-steps/s", found[stacked])

    model, batch = (SMALL_CNN, 32) if trial else (CNN, 256)
    base = recipe((1, 28, 28), 10, model, batch, 60_000 if not trial else 2_000, settings)
    ones = candidates(base, cnn_trials)
    with group_of(ones) as group, tempfile.TemporaryDirectory(prefix="tune_gpu-") as folder:
        layout = choose_layout(group, ones, layout_s)
        report.conditions["layout of the CNN"] = asdict(layout)
        stacked = f"CNN 28x28, batch 256: {cnn_trials} in a stack"
        names = f"{stacked}, convolutions {layout.convolutions}", "CNN 28x28, batch 256: our own run, with its CUDA graph"
        arms = {
            names[0]: rate_of(group, ones, TrialStack, 0, seconds, layout.convolutions),
            names[1]: lambda: one_after_another(device, base, 20 if trial else 4_000, Path(folder)),
        }
        for name, found_here in take_turns(arms, repeats, asked.within).items():
            report.arm(name, "trial-steps/s", found_here)
        report.ratio("CNN 28x28: a stack, against one run after another", names[0], names[1], LEAST_RATIO)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
