"""On a GPU a shrunk package of ResNet-50 and of a GPT with 350M weights is never slower than the compiled one in bf16."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import Report, gpu_or_leave, options, take_turns

import flatout as fo
from flatout.packaging.export import export
from flatout.packaging.package import Package
from flatout.packaging.runtimes.choice import runtime_named
from flatout.packaging.runtimes.runtime import Runtime
from flatout.shrinking import making
from flatout.shrinking.making import Shrunk

BATCHES = (1, 64)
NOT_SLOWER = 0.98  # an unchanged model differs from itself by as much
CLASSES, HELD_OUT = 10, 1500
BLOCK_S = 0.5


def pictures(place: Path, smoke: bool) -> fo.Run:
    """Blurred colours of ten kinds under noise, which some steps learn: accuracy has to mean something."""
    draw, size, rows = np.random.default_rng(0), 32 if smoke else 224, 256 if smoke else 1000
    kinds = draw.integers(40, 216, (CLASSES, 3, 4, 4)).repeat(size // 4, 2).repeat(size // 4, 3).astype(np.int16)
    y = draw.integers(0, CLASSES, rows + HELD_OUT)
    x = np.empty((len(y), 3, size, size), np.uint8)
    for start in range(0, len(y), 100):
        noise = draw.integers(-40, 40, x[start : start + 100].shape, dtype=np.int16)
        x[start : start + 100] = (kinds[y[start : start + 100]] + noise).clip(0, 255)
    file = place / "pictures.npz"
    np.savez(file, x=x, y=y)
    data = {"arrays": str(file), "holdout": HELD_OUT / len(y), "normalize": "auto"}
    model: dict[str, Any] = {"convnet": {"channels": [8, 16]}} if smoke else {"torchvision.models:resnet50": {}}
    return trained(data, model, "classify", 64, 20 if smoke else 60, 1e-3, place, smoke)


def text(place: Path, smoke: bool) -> fo.Run:
    """On the bytes of Python's own library. As many weights as GPT-2 medium in half as many layers, for the compiler."""
    sizes = {"layers": 2, "heads": 2, "width": 64} if smoke else {"layers": 12, "heads": 12, "width": 1536}
    window = 32 if smoke else 128
    data: dict[str, Any] = {
        "text": ["module:json", "module:email", "module:asyncio"], "encoding": "bytes", "window": window, "holdout": 0.4,
    }  # fmt: skip
    return trained(data, {"gpt": sizes}, "next_token", 16, 20 if smoke else 100, 3e-4, place, smoke)


def trained(
    data: Any, model: dict[str, Any], objective: str, batch: int, steps: int, lr: float, place: Path, smoke: bool
) -> fo.Run:
    settings = {"device": "cpu"} if smoke else {"precision": "bf16"}
    recipe = fo.Recipe(data=data, model=model, objective=objective, batch=batch, lr=lr, budget=f"{steps} steps", evaluate=None,
                       settings=settings)  # fmt: skip
    return fo.run(recipe, runs=place / "runs", cache=None, planning="off")


CASES: dict[str, Callable[[Path, bool], fo.Run]] = {"resnet50": pictures, "gpt": text}


def rate(runtime: Runtime, rows: dict[str, torch.Tensor], size: int) -> float:
    """Rows a second, from the host and back to it, as a server calls."""
    calls, began_s = 0, time.perf_counter()
    while calls < 3 or time.perf_counter() - began_s < BLOCK_S:
        for output in runtime.run(rows).values():
            output.cpu()
        calls += 1
    return calls * size / (time.perf_counter() - began_s)


def measured(report: Report, name: str, package: Package, made: Shrunk, repeats: int, within_s: float | None) -> None:
    """The package as a GPU serves it, beside the shrunk one; one that is unchanged is the same."""
    device = report.device
    source: Runtime = runtime_named("compiled" if device.type == "cuda" else "eager").load(package.parts(device))
    changed = runtime_named(made.about["source"]["runtime"]).load(made.package.parts(device)) if made.kept else source
    for batch in BATCHES:
        places = torch.arange(batch) % len(package.samples)
        rows = {key: one[places] for key, one in package.samples.rows.items()}
        arms = {
            f"{name}, batch {batch}: {which}": partial(rate, runtime, rows, batch)
            for which, runtime in (("source, compiled", source), ("shrunk", changed))
        }
        take_turns(arms, 1)
        for arm, values in take_turns(arms, repeats, within_s).items():
            report.arm(arm, "rows/s", values)
        claim = f"{name}, batch {batch}: shrunk over source"
        report.ratio(claim, f"{name}, batch {batch}: shrunk", f"{name}, batch {batch}: source, compiled", NOT_SLOWER)


def main() -> int:
    parser = options(__doc__, repeats=7)
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--search", default="2 min", help="no new try starts after this time (default 2 min)")
    asked = parser.parse_args()
    device = gpu_or_leave(asked.smoke)
    if asked.smoke:  # the same way of programs, on a CPU
        making._is_of_programs = lambda device: True
    report = Report(f"shrink_gpu{'' if asked.only is None else f'-{asked.only}'}", str(__doc__), device)
    with tempfile.TemporaryDirectory() as temporary:
        for name in [asked.only] if asked.only else list(CASES):
            place = Path(temporary) / name
            place.mkdir()
            began_s = time.perf_counter()
            run = CASES[name](place, asked.smoke)
            print(f"{name}: trained after {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
            package = export(run, place / "package").package
            print(f"{name}: exported after {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
            began_s = time.perf_counter()
            made = fo.shrink(package, place / "shrunk", device=str(device), batch=BATCHES, cache=place / "cache",
                             within=asked.search, say=partial(print, file=sys.stderr))  # fmt: skip
            report.conditions[name] = {
                "sentence": made.sentence, "kept": list(made.kept), "search_s": time.perf_counter() - began_s,
                "weights": sum(one.numel() for one in package.weights.values()),
                "tries": [{"name": one.name, "value": one.value, "verdict": one.verdict, "why": one.why, "speed": one.measured}
                          for one in made.receipt.entries],
                "source": made.about["source"]["metrics"], "rows": made.about["rows"],
            }  # fmt: skip
            print(f"{name}: {made.sentence}, after {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
            measured(report, name, package, made, 2 if asked.quick or asked.smoke else asked.repeats, asked.within)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
