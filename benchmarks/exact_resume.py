"""A run killed again and again, half the time inside a checkpoint write, ends with the same bits as one left alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from evidence import Bar, Report, options

# Dropout, an average of the weights, clipping and evaluations: each has state of its own that a resume must bring back.
RECIPE = """\
data: {digits: null, holdout: 0.2}
model: {mlp: {hidden: [64, 64], dropout: 0.1}}
batch: 64
lr: 3e-3
clip: 1.0
ema: 0.99
evaluate: 20 epochs
budget: %d steps
settings: {device: cpu}
"""
STEPS_A_KILL = 300


def drill(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    recipe = folder / "resume.yaml"
    recipe.write_text(RECIPE % (STEPS_A_KILL * (kills + 1)))
    command = [sys.executable, "-m", "flatout", "drill", str(recipe), "--kills", str(kills), "--seed", str(seed), "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not ended.stdout.strip():
        raise RuntimeError(f"flatout drill ended with exit code {ended.returncode} and no report")
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--kills", type=int, default=20, help="how often to kill the run (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which it is killed")
    asked = parser.parse_args()
    kills = 2 if asked.quick or asked.smoke else asked.kills
    with tempfile.TemporaryDirectory() as folder:
        found = drill(Path(folder), kills, asked.seed)
    inside = sum(kill["inside_write"] for kill in found["kills"])
    report = Report("exact_resume", str(__doc__), torch.device("cpu"))
    report.conditions = {"recipe": RECIPE % found["steps"], "seed": asked.seed, "steps": found["steps"]}
    report.conditions |= {"kills_inside_a_write": inside, "tensors_compared": found["compared_tensors"]}
    report.conditions |= {"seconds": round(found["seconds"], 1), "kills": found["kills"]}
    report.bars = [
        Bar("kills", len(found["kills"]), kills),
        Bar("of them inside a checkpoint write", inside, kills // 2),
        Bar("resumed by the same command", found["resumed"], kills),
        Bar("lost runs", found["lost_runs"], 0, at_least=False),
        Bar(f"differing bits in {found['compared_tensors']} tensors", found["differing_bits"], 0, at_least=False),
    ]
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
