"""A shrunk package is never slower than its source and at most half a point worse, and no peer's one command beats both."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from _data import real_data
from evidence import Report, options, take_turns
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from torch import Tensor

import flatout as fo
from flatout.packaging.export import export
from flatout.packaging.onnx_core import core_of
from flatout.packaging.own_data import data_behind
from flatout.packaging.package import Package, open_package
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.recipe.load import read_recipe
from flatout.shrinking.making import Shrunk
from flatout.shrinking.metric import metrics_of
from flatout.shrinking.rows import CALIBRATING, JUDGING, RowSets, rows_of_run
from flatout.shrinking.workshop.answers import costs_of, with_log_probabilities
from flatout.shrinking.workshop.questions import SOURCE
from flatout.shrinking.workshop.workshop import Workshop

EXAMPLES = Path(__file__).parent.parent / "examples"
CASES = {  # by example: how many times the source's rate is promised at batch 64
    "adult": 1.0,
    "covertype": 1.5,
    "fashion_mnist": 1.5,
    "shakespeare": 1.5,
}
SMALLER = {  # by example: the change that trains, what it is asked for, and whether half a point is promised there
    "fashion_mnist": ("prune", "flops", {"50%": True, "70%": True, "85%": False}),
    "covertype": ("distill", "weights", {"1/4": True, "1/10": False}),
}
CPU = torch.device("cpu")
TOOLS, TOOL_S = ("nncf", "olive"), 1200.0
BLOCK_S, FEW_ROWS = 0.3, 512
NOT_SLOWER = 0.98  # an unchanged model differs from itself by as much
LOST = {"points": 0.005, "loss": 0.01}


class Rows(CalibrationDataReader):  # type: ignore[misc]
    """The tutorial's reader: a few hundred rows, one batch each."""

    def __init__(self, core: onnx.ModelProto, rows: Mapping[str, Tensor]) -> None:
        names = {value.name: value.name.removeprefix("model/") for value in core.graph.input}
        self._batches = iter(
            [{value: rows[name][at : at + 32].numpy() for value, name in names.items()} for at in range(0, 256, 32)]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._batches, None)


def packaged(name: str, place: Path, given: Path | None, budget: str | None) -> Package:
    """One that is there, or trained and exported here as the example says."""
    if given is not None and (given / f"{name}-package").exists():
        return open_package(given / f"{name}-package")
    shutil.copy(EXAMPLES / f"{name}.yaml", place)
    source = real_data(".")
    if source is not None and not (place / "data").exists():
        (place / "data").symlink_to(source)
    recipe = read_recipe(place / f"{name}.yaml", [] if budget is None else [f"budget={budget}"])
    run = fo.run(recipe, runs=place / "runs", cache=place / "cache", planning="off")
    export(run, place / f"{name}-package")
    return open_package(place / f"{name}-package")


def by_hand(package: Package, rows: RowSets, place: Path, tools: Path | None) -> dict[str, Path]:
    """onnxruntime's own quantisers with their defaults, as its documentation shows them; and NNCF and Olive in `tools`."""
    core = core_of(onnx.load(package.path / "model.onnx"))
    file = place / "core.onnx"
    onnx.save(core, file)
    made: dict[str, Path] = {}
    calls: dict[str, Callable[[Path], None]] = {
        "quantize_dynamic": lambda out: quantize_dynamic(file, out),
        "quantize_static": lambda out: quantize_static(file, out, Rows(core, rows.sets[CALIBRATING])),
    }
    if tools is not None:
        _write_rows(core, rows, place)
        calls |= {name: partial(_by_tool, tools, name, place) for name in TOOLS}
    for name, call in calls.items():
        out = place / f"{name}.onnx"
        try:
            call(out)
            model = onnx.load(out)
            if not model.metadata_props:
                model.metadata_props.extend(core.metadata_props)
                onnx.save(model, out)
            OnnxRuntime(out, CPU)
            made[name] = out
        except Exception as error:  # a peer that fails is a result
            print(f"{name} failed: {[*str(error).splitlines(), ''][0][:200]}", file=sys.stderr)
    return made


def environment(folder: Path) -> Path:
    """With the tools that pin other libraries; made where it is not there yet, which downloads gigabytes."""
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
        wanted = ["nncf", "olive-ai", "requests", "onnx", f"onnxruntime=={onnxruntime.__version__}"]
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *wanted], check=True)
    return folder


def _write_rows(core: onnx.ModelProto, rows: RowSets, place: Path) -> None:
    names = {value.name: value.name.removeprefix("model/") for value in core.graph.input}
    columns = {
        f"{which}/{value}": rows.sets[which][name].numpy() for which in (CALIBRATING, JUDGING) for value, name in names.items()
    }
    np.savez(place / "rows.npz", y=rows.sets[JUDGING]["y"].numpy(), **columns)  # type: ignore[arg-type]


def _by_tool(tools: Path, name: str, place: Path, out: Path) -> None:
    """Judged on the rows that they are compared on: an advantage for NNCF, whose accuracy control looks at them."""
    script = Path(__file__).with_name("_shrink_peers.py")
    done = subprocess.run([tools / "bin" / "python", script, name, place], capture_output=True, text=True, timeout=TOOL_S)
    if done.returncode:
        raise RuntimeError([*done.stderr.strip().splitlines(), f"exit code {done.returncode}"][-1])
    (place / "made.onnx").rename(out)


def rate(runtime: OnnxRuntime, rows: dict[str, Any], size: int) -> float:
    calls, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < BLOCK_S:
        runtime.run_arrays(rows)
        calls += 1
    return calls * size / (time.perf_counter() - began_s)


def lost(package: Package, files: Mapping[str, Path], rows: RowSets, size: int) -> dict[str, float]:
    """What each file gives up against the source on all held-out rows, by the run's first metric."""
    objective = str(package.card["objective"])
    metric = metrics_of(objective, None)[0]
    costs = {}
    for name, file in files.items():
        path = file
        if objective == "next_token":
            model = with_log_probabilities(onnx.load(file))
            path = file.with_name(f"losses-{file.name}")
            onnx.save(model, path)
        costs[name] = costs_of(objective, OnnxRuntime(path, CPU).run, rows.sets[JUDGING], size)
        path.unlink() if path != file else None
    return {name: metric.lost(costs["source"], one) for name, one in costs.items()}


def measured(report: Report, name: str, package: Package, batch: int, asked: Any, place: Path, repeats: int) -> None:
    rows = rows_of_run(package, data_behind(package, place / "cache"))
    out = place / f"shrunk-{name}-{batch}"
    began_s = time.perf_counter()
    made: Shrunk = fo.shrink(package, out, batch=batch, cache=place / "cache", within=asked.search)
    took_s = time.perf_counter() - began_s
    print(f"{name}, batch {batch}: {made.sentence}", file=sys.stderr)
    report.conditions[f"{name}, batch {batch}"] = {"sentence": made.sentence, "kept": list(made.kept), "search_s": took_s}
    files = {"source": package.path / "model.onnx", "shrunk": out / "model.onnx", **by_hand(package, rows, place, asked.tools)}
    given = {key: one[torch.arange(batch) % len(one)].numpy() for key, one in rows.sets[CALIBRATING].items() if key != "y"}
    arms: dict[str, Callable[[], float]] = {}
    for which, file in files.items():
        runtime = OnnxRuntime(file, CPU)
        runtime.tune({key: one[:FEW_ROWS] for key, one in rows.sets[CALIBRATING].items() if key != "y"})
        arms[f"{name}, batch {batch}: {which}"] = partial(rate, runtime, given, batch)
    take_turns(arms, 1)
    for arm, values in take_turns(arms, repeats, asked.within).items():
        report.arm(arm, "rows/s", values)
    ours = f"{name}, batch {batch}: shrunk"
    least = CASES[name] if batch == 64 and made.kept else NOT_SLOWER
    report.ratio(f"{name}, batch {batch}: shrunk over source", ours, f"{name}, batch {batch}: source", least)
    unit = metrics_of(str(package.card["objective"]), None)[0].unit
    for which, value in lost(package, files, rows, 64).items():
        if which != "source":
            report.arm(f"{name}, batch {batch}: {which} loses", unit, [value])
    report.bar(f"{name}, batch {batch}: shrunk loses", f"{ours} loses", LOST[unit], at_least=False)
    for peer in [one for one in files if one not in ("source", "shrunk")]:
        worse = report.arms[f"{name}, batch {batch}: {peer} loses"]["median"] > LOST[unit]
        if not worse:  # one that loses more than the margin is no rival
            report.ratio(f"{name}, batch {batch}: shrunk over {peer}", ours, f"{name}, batch {batch}: {peer}", 0.95)


def smaller(report: Report, name: str, package: Package, cache: Path) -> None:
    """What models lose that are pruned or distilled, on all held-out rows; one training of each."""
    rows = rows_of_run(package, data_behind(package, cache))
    objective, (change, what, values) = str(package.card["objective"]), SMALLER[name]
    (metric,) = metrics_of(objective, None)
    with Workshop(package, rows, objective, isolated=False, cache=cache) as workshop:
        workshop.serve_with(OnnxRuntime.name)

        def costs(which: str) -> dict[str, Any]:
            told = workshop.ask({"ask": "judge", "name": which, "which": JUDGING, "batch": 64}, 600.0)
            with np.load(told["file"]) as kept:
                return {key: kept[key] for key in kept.files}

        before = costs(SOURCE)
        for value, is_promised in values.items():
            step = {"change": change, "value": value, "floats": []}
            notes = workshop.ask({"ask": "make", "steps": [step], "name": "smaller"}, 3600.0)["notes"]
            after, arm = costs("smaller"), f"{name}, {change} {value}"
            check = metric.check(before, after, 1)
            print(f"{arm}: {notes[what]:.3f} of the {what} left; {check.why}", file=sys.stderr)
            report.conditions[arm] = {"rows": rows.count(JUDGING), "source": metric.of(before), "smaller": metric.of(after),
                                      "check": check.why, **notes}  # fmt: skip
            report.arm(f"{arm}: {what} left", "share", [notes[what]])
            report.arm(f"{arm}: loses", metric.unit, [metric.lost(before, after)])
            if is_promised:
                report.bar(f"{arm}: loses", f"{arm}: loses", LOST[metric.unit], at_least=False)


def main() -> int:
    parser = options(__doc__, repeats=15)
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--batch", type=int, choices=[1, 64])
    parser.add_argument("--trained", action="store_true", help="only the models that are pruned or distilled")
    parser.add_argument("--packages", type=Path, help="a folder with NAME-package, instead of training the examples")
    parser.add_argument("--budget", help="of the trainings, instead of the examples' own")
    parser.add_argument("--tools", type=Path, help="the folder of an environment with NNCF and Olive, made if it is not there")
    parser.add_argument("--search", default="10 min", help="the time of each search (default 10 min, as the command's)")
    asked = parser.parse_args()
    if asked.tools is not None:
        environment(asked.tools)
    name = f"shrink_cpu{'_trained' if asked.trained else ''}{'' if asked.only is None else f'-{asked.only}'}"
    report = Report(name, str(__doc__), CPU)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for name in [asked.only] if asked.only else list(SMALLER if asked.trained else CASES):
            if real_data(".") is None:
                print(f"{name}: its data is not there")
                continue
            budget = "20 steps" if asked.quick else asked.budget
            package = packaged(name, place, asked.packages, budget)
            if name in SMALLER:
                smaller(report, name, package, place / "cache")
            for batch in [] if asked.trained else [asked.batch] if asked.batch else [1, 64]:
                measured(report, name, package, batch, asked, place, 2 if asked.quick else asked.repeats)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
