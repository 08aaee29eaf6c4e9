"""Examples export with the run's own outputs, a package answers one row faster than eager PyTorch, and predicts no slower."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from _data import real_data
from evidence import Report, options, take_turns

import flatout as fo
from flatout.packaging.package import Package
from flatout.packaging.runtimes.choice import fastest, runtime_named
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.packaging.runtimes.runtime import Runtime
from flatout.recipe.load import read_recipe

EXAMPLES = Path(__file__).parent.parent / "examples"
CASES = {  # the example, and how many times eager's rate one row is promised to reach
    "adult.yaml": 3.0,
    "fashion_mnist.yaml": 1.2,
    "shakespeare.yaml": 1.2,
    "bank.yaml": None,
    "covertype.yaml": None,
    "digits.yaml": None,
    "python_text.yaml": None,
    "own_model.py": None,
}
STEPS = "20 steps"
EXPORT_S = 20.0
PREDICTED_ROWS = 1_000_000
CALLS = 200


def trained(name: str, place: Path) -> fo.Run:
    """A short run: what a package costs does not depend on how well it was trained."""
    shutil.copy(EXAMPLES / name, place / name)
    data = place / "data"
    source = real_data(".")
    if source is not None and not data.exists():
        data.symlink_to(source)
    recipe = read_recipe(place / name, [f"budget={STEPS}", "evaluate=null"])
    return fo.run(recipe, runs=place / "runs", cache=place / "cache", planning="off")


def export_seconds(run: fo.Run, out: Path, place: Path) -> float:
    """By the command, with the start of Python in it."""
    command = [sys.executable, "-m", "flatout", "export", str(run.path), "--out", str(out)]
    began_s = time.perf_counter()
    subprocess.run(
        command, check=True, capture_output=True, cwd=place, env={**os.environ, "FLATOUT_CACHE": str(place / "cache")}
    )
    return time.perf_counter() - began_s


def calls_per_s(runtime: Runtime, rows: dict[str, torch.Tensor]) -> float:
    began_s = time.perf_counter()
    for _ in range(CALLS):
        runtime.run(rows)
    return CALLS / (time.perf_counter() - began_s)


def latency(report: Report, name: str, package: Package, bar: float | None, repeats: int, within: float | None) -> None:
    parts = package.parts(torch.device("cpu"))
    best = fastest(package.measured(torch.device("cpu"), None), 1)
    eager, taken = EagerRuntime.load(parts), runtime_named(best.name).load(parts)
    row = {column: tensor[:1].clone() for column, tensor in package.samples.rows.items()}
    names = (f"{name}, one row: {best.name}", f"{name}, one row: eager")
    arms: dict[str, Callable[[], float]] = {
        names[0]: partial(calls_per_s, taken, row),
        names[1]: partial(calls_per_s, eager, row),
    }
    take_turns(arms, 1)
    for arm, values in take_turns(arms, repeats, within).items():
        report.arm(arm, "rows/s", values)
    if bar is not None:
        report.ratio(f"{name}, one row: {best.name} over eager", *names, at_least=bar)


def many_rows(place: Path) -> Path | None:
    """Covertype's rows, again and again, as a CSV of a million."""
    source = real_data("covertype/covtype.csv.xz")
    if source is None:
        return None
    target = place / "million.csv"
    with lzma.open(source, "rb") as file:
        header, *lines = file.read().splitlines(keepends=True)
    with target.open("wb") as out:
        out.write(header)
        for number in range(PREDICTED_ROWS):
            out.write(lines[number % len(lines)])
    return target


def predict_rates(report: Report, run: fo.Run, package: Package, place: Path, repeats: int, within: float | None) -> None:
    rows = many_rows(place)
    if rows is None:
        print("Covertype is not there: the rate of predict is not measured")
        return
    package.measured(torch.device("cpu"), place / "cache")

    def rate(model: fo.Run | Package) -> float:
        began_s = time.perf_counter()
        made = fo.predict(model, rows, device="cpu", cache=place / "cache")
        assert len(made["prediction"]) == PREDICTED_ROWS
        return PREDICTED_ROWS / (time.perf_counter() - began_s)

    names = ("predict 1M rows: package", "predict 1M rows: run")
    for arm, values in take_turns({names[0]: partial(rate, package), names[1]: partial(rate, run)}, repeats, within).items():
        report.arm(arm, "rows/s", values)
    report.ratio("predict of 1M rows of Covertype: package over run", *names, at_least=1.0)


def main() -> int:
    parser = options(__doc__, repeats=7)
    parser.add_argument("--only", choices=[*CASES, "predict"], help="one example, or the rate of predict")
    asked = parser.parse_args()
    repeats = 2 if asked.quick else asked.repeats
    report = Report("packages", str(__doc__), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for name, bar in CASES.items():
            if asked.only not in (None, name) and not (asked.only == "predict" and name == "covertype.yaml"):
                continue
            if real_data(".") is None and name not in ("digits.yaml", "own_model.py", "python_text.yaml"):
                print(f"{name}: its data is not there")
                continue
            run = trained(name, place)
            out = place / f"package-{name}"
            report.arm(f"{name}: export", "s", [export_seconds(run, out, place)])
            report.bar(f"{name}: export, s", f"{name}: export", EXPORT_S, at_least=False)
            package = fo.load(out)
            worst = max(found["worst"] for found in package.card["parity"].values() if isinstance(found, dict))
            report.arm(f"{name}: largest difference", "", [worst])
            report.bar(f"{name}: largest difference from the run", f"{name}: largest difference", 1e-5, at_least=False)
            if asked.only != "predict":
                latency(report, name, package, bar, repeats, asked.within)
            if name == "covertype.yaml":
                predict_rates(report, run, package, place, max(2, repeats // 2), asked.within)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
