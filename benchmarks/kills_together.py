"""Four processes under torchrun, one killed at random 20 times: the run goes on in 15 s, and ends as an uninterrupted one."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from evidence import Bar, Report, options
from safetensors.torch import load_file

from flatout.base.events import read_events

PROCESSES, LIMIT_S, WAIT_S = 4, 15.0, 120.0
RECIPE = """\
data: {text: text.txt, encoding: chars, window: 32, holdout: 0.0}
model: {gpt: {layers: 2, heads: 2, width: 32}}
objective: next_token
batch: 16
lr: 1e-2
optimizer: {sgd: {momentum: 0.9}}
clip: 1.0
evaluate: null
settings: {device: cpu, log_every: 5, checkpoint_every: 20 steps}
"""


def command(folder: Path, runs: str, steps: int, kills: int) -> list[str]:
    flatout = ["-m", "flatout", "run", str(folder / "gpt.yaml"), f"budget={steps} steps", "--runs", str(folder / runs)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
    return [*torchrun, "--max-restarts", str(2 * kills), *flatout, "--planning", "off", "--quiet"]


def steps_logged(runs: Path) -> list[tuple[float, int]]:
    """When by the clock, and which."""
    found = list(runs.glob("*/events.jsonl"))
    return [(event["at"], event["step"]) for event in read_events(found[0]) if event["kind"] == "step"] if found else []


def until(found: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    ends_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_s and process.poll() is None:
        if found():
            return True
        time.sleep(0.1)
    return False


def workers(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children() if "flatout" in " ".join(child.cmdline())]


def killed_run(folder: Path, steps: int, kills: int, seed: int) -> tuple[list[float], int]:
    """Seconds from each kill to the next logged step, and the code that it ended with."""
    draw, took = random.Random(seed), []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    runs = folder / "killed"
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(command(folder, "killed", steps, kills), env=environment, stdout=said, stderr=said)
        for number in range(kills):
            before = len(steps_logged(runs))
            if not until(lambda before=before: len(steps_logged(runs)) > before, process):  # type: ignore[misc]
                break
            time.sleep(draw.uniform(0.0, 1.0))
            there = workers(process)
            if process.poll() is not None or len(there) < PROCESSES:
                break
            chosen = draw.choice(there)
            at = time.time()
            chosen.send_signal(signal.SIGKILL)
            if not until(lambda at=at: bool(steps_logged(runs)) and steps_logged(runs)[-1][0] > at + 0.5, process):  # type: ignore[misc]
                break
            took.append(next(when for when, _ in steps_logged(runs) if when > at + 0.5) - at)
            print(f"kill {number + 1} of {kills}: the next step after {took[-1]:.1f} s", file=sys.stderr, flush=True)
        return took, process.wait(timeout=600)


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--kills", type=int, default=20)
    asked = parser.parse_args()
    kills, steps = (1, 400) if asked.smoke else (3, 450) if asked.quick else (asked.kills, 150 * asked.kills)
    report = Report("kills_together", str(__doc__), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "gpt.yaml").write_text(RECIPE)
        (folder / "text.txt").write_text((Path(__file__).parent / "README.md").read_text())
        took, code = killed_run(folder, steps, kills, seed=0)
        calm = subprocess.run(
            command(folder, "calm", steps, 0), env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True
        )
        one, other = (load_file(next((folder / name).glob("*/model.safetensors"))) for name in ("calm", "killed"))
        apart = max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)
    report.conditions = {"processes": PROCESSES, "steps": steps, "exit codes": [code, calm.returncode]}
    report.arm("from a kill to the next logged step", "s", took or [float("nan")])
    report.bars.append(Bar("kills that the run went on after", len(took), kills))
    report.bars.append(
        Bar("seconds from a kill to the next step, median", statistics.median(took or [1e9]), LIMIT_S, at_least=False)
    )
    report.bars.append(Bar("weights apart from an uninterrupted run's, of the largest", apart, 1e-5, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
