"""Eight small trainings of a pipeline, packed on one GPU by measured memory and cores, are twice as fast as one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from evidence import Bar, Report, gpu_or_leave, options

TIMES = 2.0


def pipeline(trainings: int, epochs: int, device: torch.device) -> dict[str, Any]:
    stages = {}
    for number in range(trainings):
        recipe = {
            "data": {"digits": None, "holdout": 0.2}, "model": {"mlp": {"hidden": [256, 256]}}, "batch": 64, "lr": 3e-3,
            "budget": f"{epochs} epochs", "seed": number, "evaluate": None,
            "settings": {"device": device.type} | ({"threads": 1} if device.type == "cpu" else {}),
        }  # fmt: skip
        stages[f"model{number}"] = {"train": recipe, "planning": "off"}
    return {"stages": stages}


def call(folder: Path, cache: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "flatout", "pipeline", str(folder / "pipeline.yaml"), "--json", "--quiet", *words]
    began_s = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, "FLATOUT_CACHE": str(cache)}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the pipeline failed: {done.stderr[-2000:]}{done.stdout[-2000:]}")
    return {"seconds": time.perf_counter() - began_s, "told": json.loads(done.stdout)}


def main() -> int:
    asked = options(__doc__, 3).parse_args()
    device = gpu_or_leave(asked.smoke)
    trial = asked.quick or asked.smoke
    trainings, epochs = (2, 2) if asked.smoke else (4, 50) if asked.quick else (8, 400)
    alone: list[float] = []
    packed: list[float] = []
    with tempfile.TemporaryDirectory(prefix="pipeline_packed-") as scratch:
        home = Path(scratch)
        for number in range(1 if trial else asked.repeats):
            folder = home / f"round-{number}"
            folder.mkdir()
            asked_stages = pipeline(trainings, epochs, device)
            (folder / "pipeline.yaml").write_text(yaml.safe_dump(asked_stages))
            cache = home / "cache" / str(number)
            alone.append(call(folder, cache)["seconds"])  # what they need is not known yet: each has the GPU for itself
            fresh = [word for name in asked_stages["stages"] for word in ("--fresh", name)]
            packed.append(call(folder, cache, *fresh)["seconds"])
            print(
                f"round {number + 1}: {alone[-1]:.1f} s one after another, {packed[-1]:.1f} s packed",
                file=sys.stderr,
                flush=True,
            )
    report = Report("pipeline_packed", (__doc__ or "").strip(), device, {"trainings": trainings, "epochs": epochs})
    report.arm("one after another, trainings/min", "1/min", [60 * trainings / one for one in alone])
    report.arm("packed, trainings/min", "1/min", [60 * trainings / one for one in packed])
    if len(alone) > 1:
        report.ratio("times as fast", "packed, trainings/min", "one after another, trainings/min", TIMES)
    else:
        report.bars.append(Bar("times as fast", alone[0] / packed[0], TIMES))
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
