"""An example pipeline killed 50 times at random goes on with the same command to the same artefacts; no process is left."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from evidence import Bar, Report, options

MARK = "PIPELINE_KILLS"  # in the environment of every process of the pipeline
LONGEST_S, ORPHANS_S = 600.0, 20.0
KILLS_IN_A_ROUND = 10  # then it may end, and its artefacts are compared
PIPELINE = """\
stages:
  rows:
    run: python make.py rows.csv
    outputs: [rows.csv]
  parts:
    run: python split.py rows.csv train.csv parts
    outputs: [train.csv, parts]
  checked:
    data: train.csv
    expect: {a: {type: number, missing: 0}}
  model:
    train:
      data: {table: train.csv, label: y, holdout: 0.2}
      model: {mlp: {hidden: [16]}}
      batch: 32
      lr: 1e-2
      budget: EPOCHS epochs
      settings: {device: cpu, threads: 1, checkpoint_every: 200 steps}
    planning: off
  scores:
    evaluate: model
  sums:
    run: python sums.py parts sums.txt
    outputs: [sums.txt]
"""
MAKE = """\
import random, sys, time
drawn = random.Random(0)
with open(sys.argv[1], "w") as file:
    file.write("a,b,y\\n")
    for number in range(4000):
        a, b = drawn.random(), drawn.random()
        file.write(f"{a:.4f},{b:.4f},{'yes' if a > b else 'no'}\\n")
        if number % 400 == 0:
            file.flush()
            time.sleep(0.05)
"""
SPLIT = """\
import pathlib, sys, time
rows = pathlib.Path(sys.argv[1]).read_text().splitlines(keepends=True)
pathlib.Path(sys.argv[2]).write_text("".join(rows[:3001]))
folder = pathlib.Path(sys.argv[3])
folder.mkdir()
for number in range(10):
    (folder / f"{number}.csv").write_text("".join(rows[3001 + number :: 10]))
    time.sleep(0.05)
"""
SUMS = """\
import pathlib, sys
found = sorted(pathlib.Path(sys.argv[1]).iterdir())
pathlib.Path(sys.argv[2]).write_text("".join(f"{path.name} {len(path.read_text().splitlines())}\\n" for path in found))
"""
ARTEFACTS = ("rows.csv", "train.csv", "parts", "built/model/model.safetensors", "built/scores/metrics.json", "sums.txt")


def write_project(folder: Path, epochs: int) -> None:
    folder.mkdir()
    for name, text in (("make.py", MAKE), ("split.py", SPLIT), ("sums.py", SUMS)):
        (folder / name).write_text(text)
    (folder / "pipeline.yaml").write_text(PIPELINE.replace("EPOCHS", str(epochs)))


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for name in ARTEFACTS:
        place = folder / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def start(folder: Path, cache: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "FLATOUT_CACHE": str(cache), "OMP_NUM_THREADS": "1", MARK: str(folder)}
    command = [sys.executable, "-m", "flatout", "pipeline", str(folder / "pipeline.yaml"), "--quiet"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def left_behind(folder: Path) -> int:
    ends_s = time.monotonic() + ORPHANS_S
    while (count := sum(map(lambda one: _is_marked(one, folder), psutil.process_iter()))) and time.monotonic() < ends_s:
        time.sleep(0.1)
    return count


def _is_marked(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def one_round(folder: Path, cache: Path, kills: int, longest_s: float, draw: random.Random) -> dict[str, Any]:
    """The same command, killed up to `kills` times; then it may end. It ends earlier if no kill comes before its end."""
    waits: list[float] = []
    orphans, code = 0, None
    while code is None:
        running = start(folder, cache)
        if len(waits) == kills:
            code = running.wait(LONGEST_S)
            break
        wait_s = draw.uniform(0.3, longest_s)
        try:
            code = running.wait(wait_s)
        except subprocess.TimeoutExpired:
            running.send_signal(draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            running.wait(60)
            waits.append(wait_s)
            orphans += left_behind(folder)
            print(f"killed after {wait_s:.1f} s", file=sys.stderr, flush=True)
    return {"waits": waits, "orphans": orphans, "code": code}


def main() -> int:
    parser = options(__doc__, 1)
    parser.add_argument("--kills", type=int, default=50, help="default 50")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    wanted, epochs = (2, 3) if trial else (asked.kills, 12)
    draw = random.Random(asked.seed)
    rounds: list[dict[str, Any]] = []
    done = failed = differing = orphans = 0
    with tempfile.TemporaryDirectory(prefix="pipeline_kills-") as scratch:
        home = Path(scratch)
        write_project(home / "alone", epochs)
        began_s = time.monotonic()
        if start(home / "alone", home / "cache").wait(LONGEST_S) != 0:
            raise SystemExit("the undisturbed pipeline failed")
        took_s = time.monotonic() - began_s
        expected = digests(home / "alone")
        for kept in ("results", "inputs"):  # else the next round takes all of it from there
            shutil.rmtree(home / "cache" / kept, ignore_errors=True)
        while done < wanted:
            place, cache = home / f"round-{len(rounds)}", home / f"cache-{len(rounds)}"
            write_project(place, epochs)
            shutil.copytree(home / "cache", cache)
            one = one_round(place, cache, min(KILLS_IN_A_ROUND, wanted - done), 0.6 * took_s, draw)
            rounds.append(one)
            done, orphans = done + len(one["waits"]), orphans + one["orphans"]
            failed += one["code"] != 0
            differing += one["code"] == 0 and digests(place) != expected
            print(f"{done} of {wanted} kills, round {len(rounds)} ended with {one['code']}", file=sys.stderr, flush=True)
    report = Report("pipeline_kills", (__doc__ or "").strip(), torch.device("cpu"))
    report.conditions = {"pipeline": PIPELINE, "epochs": epochs, "seconds alone": took_s, "rounds": rounds}
    report.bars = [
        Bar("kills", done, wanted),
        Bar(f"of {len(rounds)} pipelines, those that did not end well", failed, 0, at_least=False),
        Bar(f"of {len(rounds)} pipelines, those with other artefacts", differing, 0, at_least=False),
        Bar("processes left behind", orphans, 0, at_least=False),
    ]
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
