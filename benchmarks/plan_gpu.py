"""From defaults a plan reaches hand-tuned rates on an H200: GPT-2 124M 546k tokens/s, 1.08x Lightning, 1.4x HF Trainer."""

# Each row is a process of its own, which a failure or the end of the time given ends without the others; what is known is
# written after every arm. Settings are planned for a long run, where trials pay, and measured in a short one.

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _peers import PEERS, SHOWN, Work, micro_batches, version_of
from evidence import BEGAN_S, NEEDS_GPU, RESULTS, Bar, Report, options
from gpt2 import CLIP, LR, WEIGHT_DECAY
from gpt2 import Size as GptSize
from gpu_small import cnn_task, tabular_task
from resnet50 import LR as PHOTO_LR
from resnet50 import MOMENTUM, in_memory, network
from resnet50 import WEIGHT_DECAY as PHOTO_DECAY
from resnet50 import Size as PhotoSize
from shakespeare_gpu import TINY as TINY_SHAKESPEARE
from shakespeare_gpu import example_in, found_data

import flatout as fo
from flatout.base.events import Event
from flatout.engine.settings import Settings
from flatout.machine.device import pick_device
from flatout.measure.receipt import KEPT, REJECTED, Receipt
from flatout.measure.stats import compare
from flatout.plan.make import ceilings_of, checked_plan
from flatout.plan.options import LIMIT_S
from flatout.plan.plan import Plan
from flatout.plan.predict import predict
from flatout.recipe.build import build_job
from flatout.recipe.load import read_recipe

LEAST_S, ROW_LIMIT_S = 30.0, 600.0  # to begin a row with, and for one where no time was given
AFTER_PLANNING_S = 45.0  # importing before it; compiling and measuring what was found
LOOK_S = 5.0  # how often what a row has found so far is written
NOT_PINNED = ("log_every", "checkpoint_every", "own")
TINY_GPT = GptSize(layers=2, heads=2, width=32, vocabulary=300, window=32, batch=8, tokens=200_000)
COLD, CACHED = "planning GPT-2, nothing known", "planning GPT-2 again"
ERROR = "predicted against measured step, chosen settings"


@dataclass(frozen=True)
class Row:
    """A model with its bar. Planned for `long` steps, about a quarter of an hour at least; measured over `short` ones."""

    name: str
    shown: str
    unit: str
    bar: float | None
    long: int
    short: int
    needs_s: float  # about, as its share where time is short
    tiny_long: int = 20_000
    tiny_short: int = 200

    def budget(self, tiny: bool, measured: bool) -> str:
        tried = (self.tiny_long, self.tiny_short) if tiny else (self.long, self.short)
        return f"budget={tried[measured]} steps"


OURS = {
    row.name: row
    for row in (
        Row("gpt2", "GPT-2 124M, context 1024, batch 64", "tokens/s", 546e3, 20_000, 240, 255),
        Row("resnet50", "ResNet-50, 224 px, batch 256", "images/s", 6_685, 30_000, 200, 130, tiny_short=60),
        Row("cnn", "CNN 28x28, batch 256", "samples/s", 587e3, 3_000_000, 15_000, 110, tiny_short=60),
        Row("mlp", "tabular MLP, batch 8,192", "rows/s", 39.8e6, 6_000_000, 30_000, 100, tiny_short=60),
        Row("shakespeare", "shakespeare_char, batch 64", "tokens/s", None, 100_000, 800, 110),
    )
}
ROWS = ("gpt2", *PEERS, *(name for name in OURS if name != "gpt2"))
NEEDS_S = {name: row.needs_s for name, row in OURS.items()} | dict.fromkeys(PEERS, 90.0)


# ---- the recipes, as files: trials then run in processes of their own, as for a user ----


def written(name: str, folder: Path, tiny: bool) -> Path:
    if name == "gpt2":
        path = folder / "gpt2.yaml"
        path.write_text(json.dumps(gpt2_recipe(tokens_in(folder, tiny), tiny)))  # JSON is YAML
        return path
    if name == "shakespeare":
        return example_in(folder, text_in(folder))
    path = folder / f"{name}.py"
    path.write_text(f"from plan_gpu import made\n\n\ndef recipe():\n    return made({name!r}, tiny={tiny})\n")
    return path


def tokens_in(folder: Path, tiny: bool) -> Path:
    path = folder / "tokens.bin"
    if not path.exists():
        count = TINY_GPT.tokens if tiny else 20_000_000
        np.random.default_rng(0).integers(0, gpt_size(tiny).vocabulary, count, dtype=np.uint16).tofile(path)
    return path


def text_in(folder: Path) -> Path:
    """Where tiny-shakespeare is; else as many random characters, which take as long."""
    data = found_data()
    if not (data / "tiny-shakespeare" / "input.txt").is_file():
        data = folder / "random"
        (data / "tiny-shakespeare").mkdir(parents=True, exist_ok=True)
        drawn = np.random.default_rng(0).integers(0, 65, 1_115_394, dtype=np.uint8) + 58
        (data / "tiny-shakespeare" / "input.txt").write_bytes(drawn.tobytes())
    return data


def gpt_size(tiny: bool) -> GptSize:
    return TINY_GPT if tiny else GptSize()


def gpt2_recipe(tokens: Path, tiny: bool) -> dict[str, Any]:
    size = gpt_size(tiny)
    text = {"text": str(tokens), "encoding": "tokens", "vocabulary": size.vocabulary, "window": size.window, "holdout": 0.0}
    return {
        "data": text,
        "model": {"gpt": {"layers": size.layers, "heads": size.heads, "width": size.width}},
        "objective": "next_token",
        "batch": size.batch,
        "lr": LR,
        "weight_decay": WEIGHT_DECAY,
        "optimizer": {"adamw": {"betas": [0.9, 0.95]}},
        "clip": CLIP,
        "budget": "1 epochs",
        "evaluate": None,
    }


def made(name: str, tiny: bool) -> fo.Recipe:
    """The recipes with data that only Python makes. Nothing is set that the plan could choose."""
    if name == "resnet50":
        return resnet50_recipe(tiny)
    task = cnn_task(tiny, 1) if name == "cnn" else tabular_task(tiny, 1)
    batch = min(task.batch, 512) if tiny else task.batch
    return fo.Recipe(data=task.data, model=task.model, batch=batch, lr=1e-3, budget="1 epochs", evaluate=None)


def resnet50_recipe(tiny: bool) -> fo.Recipe:
    size = replace(PhotoSize(), pixels=32, batch=16) if tiny else PhotoSize()
    return fo.Recipe(
        data=in_memory(size, 64 if tiny else 2048),
        model=lambda: network(size),
        batch=size.batch,
        lr=PHOTO_LR,
        weight_decay=PHOTO_DECAY,
        optimizer={"sgd": {"momentum": MOMENTUM}},
        budget="1 epochs",
        evaluate=None,
    )


# ---- a row, in its own process ----


class Notes:
    """What a row has found so far, on disk after every addition."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[str, Any] = {}

    def add(self, **found: Any) -> None:
        self.found.update(found)
        aside = self._path.with_suffix(".tmp")
        aside.write_text(json.dumps(self.found))
        os.replace(aside, self._path)


def our_row(row: Row, folder: Path, tiny: bool, stretches: int, planning_s: float, notes: Notes) -> str:
    """Planned with nothing known, then measured with what was found."""
    device, cache = pick_device("auto"), folder / "cache"
    path = written(row.name, folder, tiny)
    more = ["evaluate=null", *(one for one in TINY_SHAKESPEARE[:6] if tiny)] if row.name == "shakespeare" else []
    recipe = read_recipe(path, [*more, row.budget(tiny, measured=False)])
    job = build_job(recipe, cache)
    began_s = time.perf_counter()
    ceilings_of(device, cache)
    probe_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    plan, receipt = checked_plan(recipe, job, cache, limit_s=planning_s, say=_saying(row.name))
    cold_s = probe_s + time.perf_counter() - began_s
    predicted_s = plan.prediction.step_s
    notes.add(
        planning_limit_s=planning_s, probe_s=probe_s, cold_s=cold_s, predicted_s=predicted_s, settings=plan.settings.to_dict()
    )
    if receipt is not None:
        reference = predict(job, Settings(**receipt.reference), ceilings_of(device, cache)).step_s  # kept with its operators
        notes.add(
            planning=shown(receipt), planned_step_s=receipt.step_s,
            reference={"predicted_s": reference, "measured_s": receipt.reference_step_s},
        )  # fmt: skip
    kept = " ".join(notes.found.get("planning", {}).get("gains", {})) or "nothing kept"
    stopped = "no receipt" if receipt is None else receipt.stopped
    print(f"{row.name}: planned in {cold_s:.1f} s (probe {probe_s:.1f} s): {kept}; {stopped}", flush=True)
    pins = {name: value for name, value in notes.found["settings"].items() if name not in NOT_PINNED}
    short = read_recipe(path, [*more, row.budget(tiny, measured=True)], pins)
    rates, result = measured_rates(short, folder, stretches, device)
    step_s = job.batch / statistics.median(rates)
    scale = job.data.train.tokens_per_row if row.unit == "tokens/s" else 1
    values = [rate * scale for rate in rates]
    notes.add(
        rates=values, step_s=step_s, whole_run_rate=result["samples_per_s"] * scale, peak_bytes=result["peak_memory_bytes"],
        ledger={name: round(spent_s, 3) for name, spent_s in result["ledger"].items() if spent_s},
    )  # fmt: skip
    if row.name == "gpt2":
        plan_again(recipe, cache, plan, planning_s, notes)
    told = f"{row.name}: {statistics.median(values):,.0f} {row.unit} (n={len(values)}), step {step_s * 1e3:.4g} ms"
    return told + ("" if predicted_s is None else f", predicted {predicted_s * 1e3:.4g} ms ({predicted_s / step_s - 1:+.0%})")


def plan_again(recipe: fo.Recipe, cache: Path, plan: Plan, planning_s: float, notes: Notes) -> None:
    job = build_job(recipe, cache)  # its model knows nothing of the first plan; building it is no part of either
    began_s = time.perf_counter()
    again, _ = checked_plan(recipe, job, cache, limit_s=planning_s, say=_saying("again"))
    notes.add(cached_s=time.perf_counter() - began_s, same_again=again.settings == plan.settings)
    print(f"gpt2: planned again in {notes.found['cached_s']:.1f} s", flush=True)


def _saying(name: str) -> Callable[[str], None]:
    began_s = time.perf_counter()
    return lambda line: print(f"  {name} {time.perf_counter() - began_s:6.1f} s  {line}", file=sys.stderr, flush=True)


def measured_rates(recipe: fo.Recipe, folder: Path, stretches: int, device: torch.device) -> tuple[list[float], dict[str, Any]]:
    """Samples/s of equal stretches between log points after the first save, and the run's result."""
    events: list[Event] = []
    with tempfile.TemporaryDirectory(dir=folder) as runs:
        watch = [events.append]
        result = fo.run(recipe, runs=runs, fresh=True, cache=folder / "cache", observers=watch, planning="off").result
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return steady_rates(events, stretches) or [float(result["samples_per_s"])], result


def steady_rates(events: list[Event], stretches: int) -> list[float]:
    """Empty where a run was over before its first save was."""
    saved_s = min((event["t"] for event in events if event["kind"] == "checkpoint_saved"), default=0.0)
    points = [event for event in events if event["kind"] == "step" and event["t"] > saved_s]
    count = min(stretches, len(points) - 1)
    ends = [points[round(place)] for place in np.linspace(0, len(points) - 1, count + 1)] if count > 0 else []
    return [(b["samples"] - a["samples"]) / (b["elapsed_s"] - a["elapsed_s"]) for a, b in pairwise(ends)]


def shown(receipt: Receipt) -> dict[str, Any]:
    entries = receipt.entries
    kept = [entry for entry in entries if entry.verdict == KEPT]
    paired = receipt.paired
    return {
        "took_s": round(receipt.took_s, 1),
        "stopped": receipt.stopped,
        "gain": receipt.gain,
        "gains": {f"{entry.name}={entry.value}": entry.measured for entry in kept},
        "kept": {f"{entry.name}={entry.value}": entry.why for entry in kept},
        "proofs": {f"{entry.name}={entry.value}": entry.check.get("why") for entry in kept if entry.check},
        "rejected": {f"{entry.name}={entry.value}": entry.why for entry in entries if entry.verdict == REJECTED},
        "trials_s": {f"{entry.name}={entry.value}": round(entry.took_s, 1) for entry in entries if entry.took_s},
        "first_steps_s": {f"{entry.name}={entry.value}": entry.first_s for entry in entries if entry.first_s},
        "paired": None if paired is None else {key: paired.get(key) for key in ("passed", "n", "margin", "power", "why")},
        "notes": list(receipt.notes),
    }


def peer_row(peer: str, folder: Path, tiny: bool, stretches: int, arms: int, notes: Notes) -> str:
    """Every arm of a peer, the whole batch at once first."""
    warmup, stretch = (2, 2) if tiny else (8, 10)
    work = Work(gpt_size(tiny), tokens_in(folder, tiny), pick_device("auto"), warmup, stretch, stretches)
    torch.set_float32_matmul_precision("high")
    told = []
    failed: dict[str, str] = {}
    for rows in micro_batches(work)[:arms]:
        parts = work.size.batch // rows
        arm = f"{SHOWN[peer]}, batch {rows}" + (f" x {parts}" if parts > 1 else "")
        began_s = time.perf_counter()
        try:
            rates = PEERS[peer](work, rows)
        except Exception as error:  # an arm that does not run is none of its best
            traceback.print_exc()
            failed[arm] = f"{type(error).__name__}: {error}"
            notes.add(failed=failed)
            continue
        notes.add(**{arm: {"rates": rates, "took_s": time.perf_counter() - began_s}}, version=version_of(peer))
        told.append(f"{arm}: {statistics.median(rates):,.0f} tokens/s in {time.perf_counter() - began_s:.0f} s")
        torch._dynamo.reset()
        gc.collect()
        if work.device.type == "cuda":
            torch.cuda.empty_cache()
    if not told:
        raise RuntimeError(f"no arm of {SHOWN[peer]} ran: {failed}")
    return "; ".join(told)


def do_row(asked: argparse.Namespace, tiny: bool) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))  # so that the process of its trials is ended too
    notes = Notes(asked.scratch / f"{asked.row}.json")
    if asked.row in OURS:
        print(our_row(OURS[asked.row], asked.scratch, tiny, asked.repeats, asked.planning, notes), flush=True)
    else:
        print(peer_row(asked.row, asked.scratch, tiny, asked.repeats, asked.peer_arms, notes), flush=True)
    return 0


# ---- the table ----


def left_s(asked: argparse.Namespace) -> float:
    return float("inf") if asked.within is None else asked.within - (time.monotonic() - BEGAN_S)


def limits(name: str, to_come: Sequence[str], asked: argparse.Namespace) -> tuple[float, float]:
    """Seconds for a row, and of these for its planning: where time is short, a share of what is left."""
    share_s = left_s(asked) * NEEDS_S[name] / sum(NEEDS_S[one] for one in to_come)
    planning_s = max(1.0, min(asked.planning, share_s - AFTER_PLANNING_S))
    return min(ROW_LIMIT_S, left_s(asked), max(120.0, 2 * share_s)), planning_s


def row_apart(
    name: str, limit_s: float, planning_s: float, asked: argparse.Namespace, scratch: Path
) -> Iterator[dict[str, Any]]:
    """The row's notes whenever there are more, at last with how it ended where it did not end well."""
    command = [sys.executable, __file__, "--row", name, "--scratch", str(scratch), "--planning", str(planning_s)]
    command += ["--repeats", str(asked.repeats), "--peer-arms", str(asked.peer_arms)]
    command += ["--quick"] if asked.quick or asked.smoke else []
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"), "TRITON_CACHE_DIR": str(scratch / "triton")}
    process = subprocess.Popen(command, env={**os.environ, **caches})
    began_s, path, seen = time.monotonic(), scratch / f"{name}.json", ""
    while process.poll() is None and time.monotonic() - began_s < limit_s:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=min(LOOK_S, limit_s))
        if path.exists() and path.read_text() != seen:
            seen = path.read_text()
            yield json.loads(seen)
    ended = end(process) if process.poll() is None else f"exit code {process.returncode}" if process.returncode else ""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    yield {**found, "row_took_s": round(time.monotonic() - began_s, 1), **({"ended": ended} if ended else {})}


def end(process: subprocess.Popen[bytes]) -> str:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=15)
    process.kill()
    process.wait()
    return "its time was up"


def report_of(rows: dict[str, dict[str, Any]], device: torch.device) -> Report:
    report = Report("plan_gpu", str(__doc__), device)
    report.conditions = {"rows": rows}
    for name, row in OURS.items():
        if "rates" in rows.get(name, {}):
            report.arm(f"{row.shown}: flatout", row.unit, rows[name]["rates"])
            if row.bar is not None:
                report.bar(f"{row.shown}, {row.unit}", f"{row.shown}: flatout", row.bar)
    for peer, limit in (("lightning", 1.08), ("transformers", 1.4)):
        add_peer(report, peer, limit, rows)
    planned = rows.get("gpt2", {})
    for arm, key, limit_s in ((COLD, "cold_s", 180.0), (CACHED, "cached_s", 5.0)):
        if key in planned:
            report.arm(arm, f"s; {planned['planning_limit_s']:.0f} s were allowed", [planned[key]])
            report.bar(f"{arm}, s", arm, limit_s, at_least=False)
    add_errors(report, rows)
    return report


def add_peer(report: Report, peer: str, limit: float, rows: dict[str, dict[str, Any]]) -> None:
    arms = {name: arm for name, arm in rows.get(peer, {}).items() if isinstance(arm, dict) and "rates" in arm}
    for name, arm in arms.items():
        report.arm(name, "tokens/s", arm["rates"])
    ours = rows.get("gpt2", {}).get("rates")
    if arms and ours:
        best = max(arms, key=lambda name: statistics.median(arms[name]["rates"]))
        found = compare(ours, arms[best]["rates"], prefer="max")
        report.bars.append(Bar(f"GPT-2: flatout over {best}", found.ratio, limit, low=found.low, high=found.high))


def add_errors(report: Report, rows: dict[str, dict[str, Any]]) -> None:
    pairs = {name: (rows[name].get("predicted_s"), rows[name].get("step_s")) for name in OURS if name in rows}
    plain = {name: tuple(rows[name]["reference"].values()) for name in OURS if "reference" in rows.get(name, {})}
    for arm, found in ((ERROR, pairs), ("the same of every knob off", plain)):
        errors = [abs(predicted / measured - 1) for predicted, measured in found.values() if predicted and measured]
        if errors:
            report.arm(arm, f"of the measured, {len(errors)} models", errors)
    if ERROR in report.arms:
        report.bar("predicted against measured, median error", ERROR, 0.20, at_least=False)


def main() -> int:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--planning", type=float, default=LIMIT_S, help=f"seconds for a model's trials (default {LIMIT_S:g})")
    parser.add_argument("--peer-arms", type=int, default=2, help="of each peer: the whole batch at once, then also its halves")
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    tiny = asked.quick or asked.smoke
    if asked.row:
        return do_row(asked, tiny)
    if not torch.cuda.is_available() and not tiny:
        print(f"this benchmark needs a CUDA GPU, and torch {torch.__version__} sees none here", file=sys.stderr)
        return NEEDS_GPU
    device = pick_device("auto")
    folder = asked.out or (None if tiny else RESULTS)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        todo = [name for name in ROWS if name in asked.only]
        for place, name in enumerate(todo):
            if left_s(asked) < LEAST_S:
                rows[name] = {"ended": "left out: no time"}
            else:
                for found in row_apart(name, *limits(name, todo[place:], asked), asked, Path(scratch)):
                    rows[name] = found
                    if folder is not None:
                        report_of(rows, device).write(folder, tiny)
            if "ended" in rows[name]:
                print(f"{name}: {rows[name]['ended']}", flush=True)
    report = report_of(rows, device)
    if not report.arms:
        print("nothing was measured", file=sys.stderr)
        return 1
    return max(report.finish(asked), 1 if any("ended" in row for row in rows.values()) else 0)


if __name__ == "__main__":
    raise SystemExit(main())
