"""A package of ResNet-50 answers 18,000 images/s in batches of 64 and one in 0.7 ms, from uint8 pixels to probabilities."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from evidence import Report, gpu_or_leave, options, take_turns

import flatout as fo
from flatout.packaging.export import export
from flatout.packaging.package import Package
from flatout.packaging.parity import TOLERANCES, compare
from flatout.packaging.runtimes.compiled import CompiledRuntime
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.packaging.runtimes.runtime import Runtime

SIZE = 224
ROWS = 320
SECONDS = 1.0


def package_of(place: Path, precision: str) -> Package:
    """Random weights after one step: a package is as fast whatever it has learned."""
    import torchvision  # only beside a CUDA build of torch

    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (ROWS, 3, SIZE, SIZE), dtype=np.uint8)
    data = fo.data.arrays(pixels, draw.integers(0, 1000, ROWS), holdout=0.8, normalize="auto")
    recipe = fo.Recipe(data=data, model=torchvision.models.resnet50(), batch=8, lr=1e-4, budget="1 steps", evaluate=None,
                       settings={"precision": precision})  # fmt: skip
    run = fo.run(recipe, runs=place / "runs", cache=None, planning="off")
    return export(run, place / f"package-{precision}").package


def rate(runtime: Runtime, rows: dict[str, torch.Tensor]) -> float:
    """Calls a second, back to back; the device is waited for at the end."""
    calls, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < SECONDS:
        for _ in range(10):
            runtime.run(rows)
        torch.cuda.synchronize()
        calls += 10
    return calls / (time.perf_counter() - began_s)


def latency_ms(runtime: Runtime, rows: dict[str, torch.Tensor]) -> float:
    """Of one call from pixels on the host to probabilities on the host."""
    times = []
    for _ in range(100):
        began_s = time.perf_counter()
        runtime.run(rows)["probabilities"].cpu()
        times.append(time.perf_counter() - began_s)
    return 1e3 * float(np.median(times))


def main() -> int:
    parser = options(__doc__, repeats=5)
    parser.add_argument("--only", choices=["bf16", "fp16"], help="one precision")
    asked = parser.parse_args()
    device = gpu_or_leave(asked.smoke)
    report = Report("packages_gpu", str(__doc__), device)
    with tempfile.TemporaryDirectory() as temporary:
        for precision in (asked.only,) if asked.only else ("bf16", "fp16"):
            package = package_of(Path(temporary), precision)
            parts = package.parts(device)
            runtimes: dict[str, Runtime] = {"compiled": CompiledRuntime.load(parts), "eager": EagerRuntime.load(parts)}
            arms: dict[str, Callable[[], float]] = {}
            one: dict[str, Callable[[], float]] = {}
            for name, runtime in runtimes.items():
                parity = compare(runtime.run, package.samples, TOLERANCES[precision])
                print(f"{precision} {name}: {parity.problem or f'largest difference {parity.worst:.2g}'}")
                on_device = {column: tensor[:64].to(device) for column, tensor in package.samples.rows.items()}
                on_host = {column: tensor[:1].clone() for column, tensor in package.samples.rows.items()}
                arms[f"{precision} {name}, batches of 64"] = partial(rate, runtime, on_device)
                if name == "compiled":
                    many = {column: tensor[:64].clone() for column, tensor in package.samples.rows.items()}
                    arms[f"{precision} {name}, batches of 64 from the host"] = partial(rate, runtime, many)
                one[f"{precision} {name}, one image"] = partial(latency_ms, runtime, on_host)
            for arm, values in take_turns(arms, asked.repeats, asked.within).items():
                report.arm(arm, "images/s", [64 * value for value in values])
            for arm, values in take_turns(one, asked.repeats, asked.within).items():
                report.arm(arm, "ms", values)
            report.bar(f"{precision}: images/s in batches of 64", f"{precision} compiled, batches of 64", 18_000)
            report.bar(f"{precision}: ms for one image", f"{precision} compiled, one image", 0.7, at_least=False)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
