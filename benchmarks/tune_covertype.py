"""512 trials on Covertype reach what Optuna with ASHA and Lightning reaches in 4 minutes in a twentieth of that time."""

from __future__ import annotations

import lzma
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _data import real_data
from _optuna_lightning import Course, Search, missing, searched
from evidence import Bar, Report, gpu_or_leave, options
from pyarrow import csv

import flatout as fo
from flatout.recipe.load import read_recipe
from flatout.tuning.training.shared import CHOOSE, Group

PEER_S, LEAST, AIM = 240.0, 20.0, 60.0
CLASSES = 7
Columns = dict[str, np.ndarray[Any, Any]]


def rows(smoke: bool) -> tuple[Columns, str]:
    """Standardised columns and classes from 0, and where they are from."""
    path = real_data("covertype/covtype.csv.xz")
    if smoke or path is None:
        draw = np.random.default_rng(0)
        count = 4_000 if smoke else 581_012
        x = draw.normal(size=(count, 54)).astype(np.float32)
        y = (x[:, :CLASSES] + 0.3 * np.sin(3 * x[:, CLASSES : 2 * CLASSES])).argmax(1).astype(np.int64)
        return {"x": x, "y": y}, "made rows" if smoke else "made rows: Covertype is not below $FLATOUT_DATA"
    with lzma.open(path) as file:
        table = csv.read_csv(file)
    *names, label = table.column_names
    x = np.stack([table[name].to_numpy() for name in names], 1).astype(np.float32)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)
    return {"x": x, "y": table[label].to_numpy().astype(np.int64) - 1}, "UCI Covertype, all rows"


def parts(columns: Columns) -> dict[str, Columns]:
    """Eight tenths to train on; of the others one half chooses and one judges."""
    order = np.random.default_rng(0).permutation(len(columns["y"]))
    cut = np.split(order, [int(0.8 * len(order))])
    return {
        name: {column: values[places] for column, values in columns.items()}
        for name, places in zip(("train", "validation"), cut, strict=True)
    }


def choosing(recipe: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The held-out rows that choose between trials."""
    group = Group(read_recipe(recipe), None)
    try:
        batches = list(group.scoring(CHOOSE))
        return torch.cat([batch["x"].cpu() for batch in batches]), torch.cat([batch["y"].cpu().long() for batch in batches])
    finally:
        group.close()


def write(search: Search, divided: dict[str, Columns], folder: Path, device: torch.device) -> Path:
    """The recipe, with its data."""
    for name, one in divided.items():
        np.savez(folder / f"{name}.npz", x=one["x"], y=one["y"])
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "data: {arrays: train.npz, validation: validation.npz}\n"
        f"model: {{mlp: {{hidden: {list(search.hidden)}, dropout: {search.dropout[0]}}}}}\n"
        f"batch: {search.batch}\nlr: {search.lr[0]}\nbudget: {search.epochs} epochs\nsettings: {{device: {device.type}}}\n"
    )
    return recipe


def our_study(search: Search, recipe: Path) -> tuple[Course, dict[str, Any]]:
    """From the call to the end, processes and layouts included. The scores are those of the peers' validation rows."""
    space = {
        "lr": f"{search.lr[0]}..{search.lr[1]}",
        "weight_decay": f"{search.weight_decay[0]}..{search.weight_decay[1]}",
        "model.dropout": f"linear({search.dropout[0]},{search.dropout[1]})",
    }
    course, began_s = Course(), time.perf_counter()

    def watch(event: Any) -> None:
        if event["kind"] == "rung":
            for score in event["scores"].values():
                if score is not None:
                    course.note(time.perf_counter() - began_s, score)

    folder = recipe.parent
    study = fo.tune(recipe, space, trials=search.trials, runs=folder / "runs", cache=folder / "cache", observers=[watch])
    course.trials, course.seconds = study.result["trials"], time.perf_counter() - began_s
    kept = ("trials", "finished_trials", "seconds", "training_s", "layouts", "again", "score_in_search", "first_rung")
    return course, {name: study.result[name] for name in kept}


def main() -> int:
    parser = options(__doc__, 1)
    parser.add_argument("--peer-seconds", type=float, default=PEER_S, help=f"of the peers' search (default {PEER_S:g})")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    device = gpu_or_leave(trial and not torch.cuda.is_available())
    peer_s = 5.0 if trial else asked.peer_seconds
    columns, source = rows(asked.smoke or (trial and device.type == "cpu"))
    divided = parts(columns)
    train, held_out = ((torch.from_numpy(one["x"]), torch.from_numpy(one["y"])) for one in divided.values())
    search = Search(
        train, held_out, CLASSES, (32,) if trial else (256, 256), 64 if trial else 512,
        2 if trial else 5, 8 if trial else 512, (1e-4, 0.1), (1e-6, 0.1), (0.01, 0.5),
    )  # fmt: skip
    report = Report("tune_covertype", (__doc__ or "").strip(), device)
    report.conditions = {"rows": source, "aim of the ratio": AIM, "trials": search.trials, "peers": missing() or "ran",
                         "before": "a study of two trials, for what is cached once for a machine"}  # fmt: skip
    ours: list[Course] = []
    for _ in range(asked.repeats):
        with tempfile.TemporaryDirectory(prefix="tune_covertype-") as folder:
            recipe = write(search, divided, Path(folder), device)
            if not trial:  # peak rates and kernels are cached, as on any machine that was used before
                fo.tune(recipe, {"lr": "1e-3..1e-2"}, trials=2, runs=Path(folder) / "first", cache=Path(folder) / "cache")
            course, about = our_study(search, recipe)
            search = replace(search, validation=choosing(recipe))
        ours.append(course)
        report.conditions.setdefault("studies", []).append({**about, "course": course.rises})
        print(f"flatout: {course.best:.4f} after {course.seconds:.1f} s, {course.trials} trials", file=sys.stderr, flush=True)
    report.arm("flatout: best accuracy on the validation rows", "accuracy", [one.best for one in ours])
    report.arm("flatout: the whole study, judging included", "s", [one.seconds for one in ours])
    if why := missing():
        print(f"the peers are left out: {why}", file=sys.stderr)
        return report.finish(asked)
    peer = searched(search, device, peer_s)
    print(f"peers: {peer.best:.4f} after {peer.seconds:.1f} s, {peer.trials} trials", file=sys.stderr, flush=True)
    report.conditions["course of the peers"] = {"trials": peer.trials, "seconds": peer.seconds, "rises": peer.rises}
    report.arm("Optuna, ASHA and Lightning: best accuracy", "accuracy", [peer.best])
    report.arm("Optuna, ASHA and Lightning: time", "s", [peer.seconds])
    reached = [one.reached(peer.best) for one in ours]
    times = [seconds for seconds in reached if seconds is not None]
    if times:
        report.arm("flatout: time to the peers' accuracy", "s", times)
    slowest = max(times) if len(times) == len(ours) else float("inf")  # a study that does not reach it has no time
    report.bars.append(Bar(f"times less than the peers' {peer.seconds:.0f} s", peer.seconds / slowest, LEAST))
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
