"""A step takes no longer than in another checkout, and a resume, from the start of its process, at most 2% longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from evidence import Report, options, take_turns

HERE = Path(__file__).parent.parent / "src"
NOISE = 0.97  # two arms of the very same code differ by so much on a machine that others use

# what each arm runs in a process of its own, with its own flatout on the path
CHILD = """
import json, os, signal, sys, time
from pathlib import Path
import torch
from torch import nn
import flatout as fo
from flatout.base.errors import Stopped

what, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
x, y = torch.randn(20_000, 64), torch.randint(0, 10, (20_000,))
wide = 64 if what == "steps" else 3_000


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 10))


def recipe(budget):
    return fo.Recipe(data=fo.data.arrays(x, y, classes=10), model=network, batch=128, lr=1e-3, budget=budget, evaluate=None,
                     settings={"device": "cpu"})


def run(budget, **more):
    return fo.run(recipe(budget), runs=Path(folder) / "runs", cache=Path(folder) / "cache", **more)


if what == "steps":
    result = run(f"{steps} steps", fresh=True).result
    print(json.dumps(result["steps"] / result["train_seconds"]))
elif what == "begin":
    def stop(event):
        if event["kind"] == "started":
            os.kill(os.getpid(), signal.SIGTERM)
    try:
        run("20 steps", observers=[stop])
    except Stopped:
        pass
else:
    began_s = float(sys.argv[4])  # when the process was started
    took = []
    def seen(event):
        if event["kind"] == "resumed":
            took.append(time.time() - began_s)
            os.kill(os.getpid(), signal.SIGTERM)  # the next one resumes it, too
    try:
        run("20 steps", observers=[seen])
    except Stopped:
        pass
    print(json.dumps(1 / took[0]))
"""


def child(source: Path, what: str, folder: Path, steps: int) -> float:
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, what, str(folder), str(steps), str(time.time())]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if ended.returncode:
        raise SystemExit(f"{source}: {what} failed:\n{ended.stderr}")
    lines = ended.stdout.split()
    return float(json.loads(lines[-1])) if lines else 0.0


def arm(source: Path, what: str, folder: Path, steps: int) -> Callable[[], float]:
    return lambda: child(source, what, folder, steps)


def main() -> int:
    parser = options(__doc__, repeats=15)
    parser.add_argument("--against", type=Path, required=True, help="the src folder of the other checkout")
    asked = parser.parse_args()
    steps = 300 if asked.quick else 3000
    report = Report("between_versions", str(__doc__), torch.device("cpu"), {"steps": steps, "weights": 9_225_010})
    with tempfile.TemporaryDirectory() as scratch:
        arms = {}
        for name, source in (("this version", HERE), ("the other", asked.against.resolve())):
            folder = Path(scratch) / name.replace(" ", "-")
            folder.mkdir()
            child(source, "begin", folder, 0)
            arms[f"{name}, steps/s"] = arm(source, "steps", folder, steps)
            arms[f"{name}, resumes/s"] = arm(source, "resume", folder, steps)
        values = take_turns(arms, 3 if asked.quick else asked.repeats, asked.within)
    for name, found in values.items():
        report.arm(name, name.rpartition(" ")[2], found)
    report.ratio("rate of steps", "this version, steps/s", "the other, steps/s", NOISE)
    report.ratio("rate of resumes", "this version, resumes/s", "the other, resumes/s", 0.98)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
