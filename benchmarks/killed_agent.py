"""Two torchrun agents, as on two nodes; one is killed with its worker: the other goes on alone in a minute, five times of five.

The store where agents meet is a process of its own here, as on a head node, so that either of them may be the one to go. By
default torchrun waits half a minute for whoever may still come, which is most of what is measured.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from evidence import Bar, Report, options, rounds
from kills_together import RECIPE, steps_logged
from safetensors.torch import load_file

LIMIT_S, WAIT_S = 60.0, 150.0
STEPS = 800  # enough that the run is under way when the agent goes
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
Agent = subprocess.Popen[bytes]


def training(folder: Path, runs: str, steps: int) -> list[str]:
    asked = ["-m", "flatout", "run", str(folder / "gpt.yaml"), f"budget={steps} steps", "--runs", str(folder / runs)]
    return [*asked, "--planning", "off", "--quiet"]


def agent(folder: Path, runs: str, steps: int, port: int, said: Any) -> Agent:
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "is_host=0", "--rdzv-id", runs]
    nodes = ["--nnodes", "1:2", "--nproc-per-node", "1", "--local-addr", "127.0.0.1", "--max-restarts", "3"]
    command = [sys.executable, "-m", "torch.distributed.run", *nodes, *meeting, *training(folder, runs, steps)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=said, stderr=said)


def until(found: Callable[[], bool], agents: list[Agent]) -> bool:
    ends_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_s and all(one.poll() is None for one in agents):
        if found():
            return True
        time.sleep(0.1)
    return False


def kill_all_of(process: Agent) -> None:
    """It first, so that it can't see its worker go."""
    there = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in there:
        one.kill()
    psutil.wait_procs(there, timeout=10)
    process.wait()


def one_kill(folder: Path, number: int, steps: int, draw: random.Random) -> tuple[float, int]:
    """Seconds from the kill to the next logged step, and the code that the agent that was left ended with."""
    store_of: Any = dist
    store = store_of.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    runs = folder / f"killed-{number}"
    agents: list[Agent] = []
    with (folder / f"said-{number}.txt").open("w") as said:
        try:
            agents = [agent(folder, runs.name, steps, store.port, said) for _ in range(2)]
            if not until(lambda: len(steps_logged(runs)) > 10, agents):
                return float("inf"), -1
            time.sleep(draw.uniform(0.0, 1.0))
            at = time.time()
            kill_all_of(agents.pop(draw.randrange(2)))
            if not until(lambda: steps_logged(runs)[-1][0] > at + 0.5, agents):
                return float("inf"), -1
            took = next(when for when, _ in steps_logged(runs) if when > at + 0.5) - at
            return took, agents[0].wait(timeout=WAIT_S)
        finally:
            for one in agents:
                if one.poll() is None:
                    kill_all_of(one)


def main() -> int:
    asked = options(__doc__, repeats=5).parse_args()
    repeats = 1 if asked.smoke or asked.quick else asked.repeats
    steps, draw = 400 if asked.smoke else STEPS, random.Random(0)
    report = Report("killed_agent", str(__doc__).partition("\n")[0], torch.device("cpu"))
    took, codes, apart = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "gpt.yaml").write_text(RECIPE)
        (folder / "text.txt").write_text((Path(__file__).parent / "README.md").read_text())
        calm = subprocess.run([sys.executable, *training(folder, "calm", steps)], env=ENVIRONMENT, capture_output=True)
        whole = load_file(next((folder / "calm").glob("*/model.safetensors")))
        for number in rounds(repeats, asked.within):
            seconds, code = one_kill(folder, number, steps, draw)
            took.append(seconds)
            codes.append(code)
            print(f"kill {number + 1} of {repeats}: the next step after {seconds:.1f} s, ended with {code}", file=sys.stderr)
            if code:
                print((folder / f"said-{number}.txt").read_text()[-3000:], file=sys.stderr)
                continue
            found = load_file(next((folder / f"killed-{number}").glob("*/model.safetensors")))
            apart.append(max(float((whole[name] - found[name]).abs().max() / whole[name].abs().max()) for name in whole))
    report.conditions = {"agents": 2, "processes of each": 1, "steps": steps, "exit codes": [*codes, calm.returncode]}
    report.arm("from a killed agent to the next logged step", "s", took)
    within = sum(seconds <= LIMIT_S for seconds in took)
    report.bars.append(Bar("kills of an agent that the run went on after within 60 s", within, repeats))
    report.bars.append(Bar("runs that ended well", len(apart), repeats))
    report.bars.append(
        Bar("weights apart from an uninterrupted run's, of the largest", max(apart or [1e9]), 1e-5, at_least=False)
    )
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
