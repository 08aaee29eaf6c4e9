"""A study killed 20 times at random moments ends with the same winner and the same scores, bit for bit, as one left alone."""

from __future__ import annotations

import json
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

from flatout.base.events import read_events

MARK = "TUNE_KILLS"  # in the environment of every process of the study: one that has it and lives on was left behind
LONGEST_S, ORPHANS_S = 900.0, 20.0
RECIPE = """\
data: {digits: null, holdout: 0.3}
model: {mlp: {hidden: [32], dropout: 0.1}}
batch: 64
lr: 1e-2
budget: %d epochs
settings: {device: cpu}
"""
SPACE = ["lr=1e-4..1e-1", "model.dropout=0.05..0.5", "weight_decay=0,1e-5..1e-1"]


def command(folder: Path, runs: str, trials: int) -> list[str]:
    recipe = str(folder / "recipe.yaml")
    asked = ["--trials", str(trials), "--runs", str(folder / runs), "--json", "--quiet"]
    return [sys.executable, "-m", "flatout", "tune", recipe, *SPACE, *asked]


def environment(folder: Path) -> dict[str, str]:
    """One thread: which number of threads is faster may differ from one measurement to the next, and so may the last bits."""
    kept = {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"), MARK: str(folder)}
    return {**os.environ, **kept}


def found_in(runs: Path) -> dict[str, Any]:
    """Everything that the only study in there found, but no times."""
    (study,) = [path for path in runs.iterdir() if (path / "study.json").exists()]
    events = list(read_events(study / "study.jsonl"))
    result = json.loads((study / "result.json").read_text())
    return {
        "rungs": [[one["to"], one["trials"], one["scores"], one["failed"]] for one in events if one["kind"] == "rung"],
        "finals": [sorted(one["scores"]) for one in events if one["kind"] == "finals"],
        "winner": result["winner"],
        "scores": [result["scores"], result["recipe_scores"]],
    }


def before_its_first_rung(runs: Path) -> None:
    """As a kill right after the measurements leaves it: what was measured decides how wide waves are, and would differ."""
    (study,) = [path for path in runs.iterdir() if (path / "study.json").exists()]
    log = study / "study.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    first = next(place for place, line in enumerate(lines) if '"kind": "rung"' in line or '"kind":"rung"' in line)
    log.write_text("".join(lines[:first]))
    for name in ("result.json", "best.yaml"):
        (study / name).unlink()
    shutil.rmtree(study / "states", ignore_errors=True)


def left_behind(folder: Path) -> int:
    """Processes that outlive the study."""
    ends_s = time.monotonic() + ORPHANS_S
    while (count := _marked(folder)) and time.monotonic() < ends_s:
        time.sleep(0.2)
    return count


def _marked(folder: Path) -> int:
    count = 0
    for process in psutil.process_iter():
        try:
            count += process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
    return count


def killed(folder: Path, trials: int, kills: int, longest_s: float, draw: random.Random) -> dict[str, Any]:
    """The same command again and again; it is killed `kills` times, then it may end."""
    waits, orphans, ended_early = [], 0, 0
    for _ in range(kills):
        process = subprocess.Popen(
            command(folder, "killed", trials), env=environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        waits.append(draw.uniform(0.5, longest_s))
        try:
            process.wait(waits[-1])
            ended_early += 1
            break
        except subprocess.TimeoutExpired:
            process.send_signal(draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            process.wait(60)
        orphans += left_behind(folder)
        if list((folder / "killed").glob("*/result.json")):  # it had just ended: the same command would begin another study
            ended_early += 1
            break
        print(f"killed after {waits[-1]:.1f} s", file=sys.stderr, flush=True)
    if not ended_early:
        subprocess.run(command(folder, "killed", trials), env=environment(folder), stdout=subprocess.DEVNULL, timeout=LONGEST_S,
                       check=True)  # fmt: skip
    return {"waits": waits, "orphans": orphans, "kills": len(waits) - ended_early}


def main() -> int:
    parser = options(__doc__, 1)
    parser.add_argument("--kills", type=int, default=20, help="default 20")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    wanted, trials, epochs = (2, 8, 3) if trial else (asked.kills, 60, 20)
    draw = random.Random(asked.seed)
    kills = orphans = lost = differing = studies = 0
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tune_kills-") as scratch:
        folder = Path(scratch)
        (folder / "recipe.yaml").write_text(RECIPE % epochs)
        began_s = time.monotonic()
        subprocess.run(command(folder, "alone", trials), env=environment(folder), stdout=subprocess.DEVNULL, check=True)
        took_s = time.monotonic() - began_s
        expected = found_in(folder / "alone")
        while kills < wanted:  # a study that ends before its last kill is followed by another
            shutil.copytree(folder / "alone", folder / "killed")
            before_its_first_rung(folder / "killed")
            one = killed(folder, trials, wanted - kills, 0.6 * took_s, draw)
            kills, orphans, studies = kills + one["kills"], orphans + one["orphans"], studies + 1
            rounds.append(one)
            try:
                differing += found_in(folder / "killed") != expected
            except (OSError, ValueError):
                lost += 1
            (folder / "killed").rename(folder / f"killed-{studies}")
    report = Report("tune_kills", (__doc__ or "").strip(), torch.device("cpu"))
    report.conditions = {"recipe": RECIPE % epochs, "space": SPACE, "trials": trials, "seconds alone": took_s, "rounds": rounds}
    report.bars = [
        Bar("kills", kills, wanted),
        Bar("lost studies", lost, 0, at_least=False),
        Bar(f"of {studies} studies, those that differ from the undisturbed one", differing, 0, at_least=False),
        Bar("processes left behind", orphans, 0, at_least=False),
    ]
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
