"""nanoGPT's shakespeare_char model reaches a validation loss of 1.48 in 30 s on an H200, planning and compiling included."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from evidence import BEGAN_S, NEEDS_GPU, Bar, Report, options

import flatout as fo
from flatout.base.events import read_events
from flatout.measure.receipt import KEPT, Receipt

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "shakespeare_gpu.yaml"
TARGET, LIMIT_S, RUN_LIMIT_S = 1.48, 30.0, 300.0
COLD, WARM = "nothing known of the machine", "machine probed before"
TINY = ["model.layers=2", "model.heads=2", "model.width=32", "data.window=32", "data.stride=32", "batch=8"]
TINY += ["budget=40 steps", "evaluate=20 steps"]
TINY_TARGET = 4.5


def found_data() -> Path:
    """$FLATOUT_DATA, or shared/data beside the checkout or in it."""
    given = os.environ.get("FLATOUT_DATA")
    places = [Path(given)] if given else [HERE.parent.parent / "shared" / "data", HERE.parent / "shared" / "data"]
    return next((place for place in places if place.is_dir()), places[0])


def example_in(folder: Path, data: Path) -> Path:
    """A copy of the example with its data beside it, where a recipe looks for it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data").exists():
        (folder / "data").symlink_to(data.resolve())
    return Path(shutil.copy(EXAMPLE, folder))


@dataclass(frozen=True)
class Asked:
    data: Path
    overrides: list[str]
    flags: list[str]
    target: float
    limit_s: float


def environment(folder: Path) -> dict[str, str]:
    """As it is, with every cache that makes a second run faster in a folder of its own."""
    own = {
        "FLATOUT_CACHE": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
    }
    above = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(HERE.parent / "src"), *([above] if above else [])])
    return {**os.environ, **own, "PYTHONPATH": path}


def train(asked: Asked, seed: int, folder: Path) -> dict[str, Any]:
    """`flatout run` in a process of its own, and when it got where, in seconds since that process was started."""
    recipe = example_in(folder, asked.data)
    command = [sys.executable, "-m", "flatout", "run", str(recipe), f"seed={seed}", *asked.overrides]
    command += [*asked.flags, "--runs", str(folder / "runs"), "--quiet"]
    with (folder / "said.txt").open("w") as said:
        began, began_s = time.time(), time.perf_counter()
        process = subprocess.Popen(command, env=environment(folder), cwd=folder, stdout=said, stderr=subprocess.STDOUT)
        try:
            code = process.wait(timeout=asked.limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
        wall_s = time.perf_counter() - began_s
    runs = sorted((folder / "runs").glob("*/events.jsonl"))
    if not runs:
        raise RuntimeError(f"seed {seed}: no run was begun, exit code {code}: {(folder / 'said.txt').read_text()[-2000:]}")
    return {"seed": seed, "exit": code, "wall_s": wall_s, **what_happened(runs[-1].parent, began, asked.target)}


def what_happened(run: Path, began: float, target: float) -> dict[str, Any]:
    events = list(read_events(run / "events.jsonl"))
    evaluations = [event for event in events if event["kind"] == "evaluation"]
    hit = next((event for event in evaluations if event["metrics"]["loss"] <= target), None)
    at = {event["kind"]: event["at"] - began for event in reversed(events)}  # of each kind the first
    steps = [event for event in events if event["kind"] == "step"]
    before_hit = [event for event in steps if hit is None or event["step"] <= hit["step"]]
    done = fo.load(run)
    result = done.result if (run / "result.json").exists() else {}
    return {
        "reached_s": hit["at"] - began if hit else None,
        "reached_step": hit["step"] if hit else None,
        "best_loss": min((event["metrics"]["loss"] for event in evaluations), default=None),
        "planned_at_s": at.get("planned"),  # importing, reading, probing and planning are before it
        "started_at_s": at.get("started"),  # setting up; of a graph also compiling and capturing
        "first_log_at_s": at.get("step"),
        "training_until_reached_s": before_hit[-1]["elapsed_s"] if before_hit else None,
        "evaluations": [(event["step"], round(event["at"] - began, 2), event["metrics"]["loss"]) for event in evaluations],
        "steps_per_s": (result["steps"] - 1) / result["train_seconds"] if result.get("train_seconds") else None,
        "ledger": {row: round(spent_s, 3) for row, spent_s in result.get("ledger", {}).items() if spent_s},
        "planning": planning_of(done.receipt),
        "settings": done.plan.settings.to_dict(),
        "degraded": [f"{event['what']}: {event['why']}" for event in events if event["kind"] == "degraded"],
    }  # fmt: skip


def planning_of(receipt: Receipt | None) -> dict[str, Any] | None:
    if receipt is None:
        return None
    kept = [f"{entry.name}={entry.value}: {entry.why}" for entry in receipt.entries if entry.verdict == KEPT]
    return {"took_s": round(receipt.took_s, 2), "stopped": receipt.stopped, "kept": kept, "notes": list(receipt.notes)}


def line_of(arm: str, found: dict[str, Any]) -> str:
    reached = "not reached" if found["reached_s"] is None else f"{found['reached_s']:.1f} s (step {found['reached_step']})"
    took_s = (found["planning"] or {}).get("took_s", 0)
    ledger = ", ".join(f"{row} {spent_s:.1f}" for row, spent_s in found["ledger"].items() if spent_s >= 0.05)
    rate = f"{found['steps_per_s']:.0f} steps/s" if found["steps_per_s"] else "no rate"
    planned_s, started_s, best = (found[key] or math.nan for key in ("planned_at_s", "started_at_s", "best_loss"))
    return (
        f"{arm}, seed {found['seed']}: {reached}; planned after {planned_s:.1f} s (trials {took_s:.1f} s), "
        f"begun after {started_s:.1f} s, {found['wall_s']:.1f} s in all; best {best:.4f}; {rate}; {ledger}"
    )


def import_s(scratch: Path) -> float:
    """What the interpreter takes to import torch and flatout, files in the page cache: part of every run."""
    command = [sys.executable, "-c", "import torch, flatout.runs.verbs"]
    subprocess.run(command, env=environment(scratch), check=False)
    began_s = time.perf_counter()
    subprocess.run(command, env=environment(scratch), check=False)
    return time.perf_counter() - began_s


def report_of(runs: dict[str, list[dict[str, Any]]], conditions: dict[str, Any], target: float, device: torch.device) -> Report:
    report = Report("shakespeare_gpu", str(__doc__), device)
    report.conditions = {**conditions, "runs": runs}
    for arm, found in runs.items():
        if not found:
            continue
        # a run that never got there counts as the longest that one may take
        report.arm(f"{arm}: to a loss of {target:g}", "s", [one["reached_s"] or RUN_LIMIT_S for one in found])
        report.arm(f"{arm}: whole process", "s", [one["wall_s"] for one in found])
        report.arm(f"{arm}: until the plan was made", "s", [one["planned_at_s"] or one["wall_s"] for one in found])
        losses = [one["best_loss"] for one in found if one["best_loss"] is not None]
        if losses:
            report.arm(f"{arm}: best loss", "nats", losses)
        rates = [one["steps_per_s"] for one in found if one["steps_per_s"]]
        if rates:
            report.arm(f"{arm}: rate of training", "steps/s", rates)
    if runs[COLD]:
        missed = sum(one["reached_s"] is None for one in runs[COLD])
        claim = f"seconds to a loss of {target:g}, median of {len(runs[COLD])} seeds"
        report.bar(claim, f"{COLD}: to a loss of {target:g}", LIMIT_S, at_least=False)
        report.bars.append(Bar("seeds that did not get there", missed, 0, at_least=False))
    return report


def keep_ceilings(from_cache: Path, to_cache: Path) -> None:
    """What was measured of the machine, and nothing of the model."""
    to_cache.mkdir(parents=True)
    for path in from_cache.glob("ceilings-*.json"):
        shutil.copy(path, to_cache)


def asked_of(given: argparse.Namespace, tiny: bool) -> Asked:
    overrides = [*(TINY if tiny else []), *given.override]
    overrides += [f"{name}={value}" for name in ("budget", "evaluate") if (value := getattr(given, name))]
    flags = [flag for pin in given.set for flag in ("--set", pin)] + [flag for name in given.off for flag in ("--off", name)]
    flags += ["--planning", given.planning] if given.planning else []
    return Asked(given.data, overrides, flags, given.target or (TINY_TARGET if tiny else TARGET), RUN_LIMIT_S)


def main() -> int:
    parser = options(__doc__, repeats=5)
    parser.add_argument("--data", type=Path, default=found_data(), help="folder of the data sets")
    parser.add_argument("--seeds", type=int, help="how many, from 0 (as --repeats)")
    parser.add_argument("--warm", action="store_true", help="a second arm: the machine was probed before, the model is new")
    parser.add_argument("--budget", help="another than the example's")
    parser.add_argument("--evaluate", help="another interval than the example's, such as '100 steps'")
    parser.add_argument("--target", type=float, help=f"loss to reach (default {TARGET})")
    parser.add_argument("--override", nargs="+", default=[], metavar="KEY=VALUE", help="of the recipe, such as lr=2e-3")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as `flatout run` has it")
    parser.add_argument("--off", action="append", default=[], metavar="NAME", help="as `flatout run` has it")
    parser.add_argument("--planning", help="as `flatout run` has it")
    parser.add_argument("--keep", type=Path, help="folder for the runs; by default they are deleted")
    given = parser.parse_args()
    tiny = given.quick or given.smoke
    if not (given.data / "tiny-shakespeare" / "input.txt").is_file():
        parser.error(f"no tiny-shakespeare/input.txt below {given.data}: --data names the folder of the data sets")
    if not torch.cuda.is_available() and not tiny:
        print(f"this benchmark needs a CUDA GPU, and torch {torch.__version__} sees none here", file=sys.stderr)
        return NEEDS_GPU
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    asked = asked_of(given, tiny)
    seeds = given.seeds or (2 if tiny else given.repeats)
    conditions: dict[str, Any] = {"overrides": asked.overrides, "flags": asked.flags, "recipe": EXAMPLE.read_text()}
    runs: dict[str, list[dict[str, Any]]] = {COLD: [], WARM: []}
    failures: list[str] = []
    folder = given.out or (None if tiny else HERE / "results")
    with tempfile.TemporaryDirectory() as scratch:
        place = given.keep or Path(scratch)
        conditions["import_s"] = import_s(place)
        for seed in range(seeds):
            for arm in (COLD, WARM) if given.warm else (COLD,):
                own = place / f"{'cold' if arm == COLD else 'warm'}-{seed}"
                last_s = max((one["wall_s"] for found in runs.values() for one in found), default=0.0)
                if given.within is not None and time.monotonic() - BEGAN_S + last_s > given.within:
                    print(f"{arm}, seed {seed}: left out, no time within {given.within:g} s", file=sys.stderr)
                    continue
                if arm == WARM:
                    keep_ceilings(place / f"cold-{seed}" / "cache", own / "cache")
                try:
                    runs[arm].append(train(asked, seed, own))
                    print(line_of(arm, runs[arm][-1]), flush=True)
                except Exception as error:  # the other seeds are still worth having
                    failures.append(f"{arm}, seed {seed}: {type(error).__name__}: {error}")
                    print(failures[-1], file=sys.stderr, flush=True)
                report = report_of(runs, {**conditions, "failures": failures}, asked.target, device)
                if folder is not None:
                    report.write(folder, tiny)
    return max(report.finish(given), 1 if failures else 0) if report.arms else 1


if __name__ == "__main__":
    raise SystemExit(main())
