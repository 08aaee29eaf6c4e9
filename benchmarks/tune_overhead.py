"""At most 5% of the time from `flatout tune` to its result is not training, with two minutes of training or more.

The command is run with an empty cache. What a user waits is counted, from its start until it has ended: imports, reading data,
measuring layouts, choosing what to try, printing the result.
"""

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
from evidence import Report, options

from flatout.tuning.study.ledger import DATA, LAYOUTS, PROCESS, SEARCH, SETTINGS, START, ledger_lines

LEAST_TRAINING_S = 120.0
LIMIT = 0.05
BEFORE = (START, PROCESS, DATA, SETTINGS, LAYOUTS)
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
    """By command, with an empty cache: `waited_s` is what a user waits until the command has ended."""
    (folder / "recipe.yaml").write_text(written)
    words = ["tune", "recipe.yaml", "--budget", budget, "--seed", str(seed), "--json", "--quiet"]
    environment = {**os.environ, "FLATOUT_CACHE": str(folder / "cache")}
    began_s = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "flatout", *words], cwd=folder, env=environment, stdout=subprocess.PIPE, check=True
    )
    waited_s = time.perf_counter() - began_s
    return {**json.loads(ended.stdout)["result"], "waited_s": waited_s}


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
            around = "; ".join(ledger_lines(one["parts"], one["waited_s"]))
            after_s = one["waited_s"] - one["seconds"]
            print(
                f"{name}: {one['training_s']:.1f} s of training in {one['waited_s']:.1f} s, {one['trials']} trials: {around}; "
                f"{after_s:.2f} s printing the result and ending",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        shares = [1 - one["training_s"] / one["waited_s"] for one in found]
        report.arm(f"{name}: time around the training", "share", shares)
        report.arm(
            f"{name}: before the first trial is trained", "s", [sum(one["parts"][part] for part in BEFORE) for one in found]
        )
        report.arm(f"{name}: what to try next", "s", [one["parts"][SEARCH] for one in found])
        report.arm(f"{name}: after the result was known", "s", [one["waited_s"] - one["seconds"] for one in found])
        report.arm(f"{name}: training", "s", [one["training_s"] for one in found])
        report.bar(
            f"{name}: share of the time that is not training", f"{name}: time around the training", LIMIT, at_least=False
        )
        report.bar(f"{name}: seconds of training", f"{name}: training", LEAST_TRAINING_S)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
