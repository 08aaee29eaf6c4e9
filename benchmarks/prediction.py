"""On a GPU steps are predicted within 20% in the median, five models in two forms; on a CPU six small ones show how well."""

# No training is compared here: what a step takes in each form, beside what was predicted before it was run. On a GPU the forms
# are bf16 in a graph, and compiled as well; on a CPU fp32 and bf16.

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from _small_models import SMALL
from _small_models import recipe as small_recipe
from evidence import BEGAN_S, Bar, Report, machine, options
from record_knobs import MODELS

import flatout as fo
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.ceilings import Ceilings
from flatout.machine.device import pick_device
from flatout.machine.operators import with_operators
from flatout.machine.probe import probe
from flatout.models.facts import has_convolution
from flatout.plan.predict import predict
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.reports import Ask
from flatout.plan.work import work_of
from flatout.recipe.build import build_job

LIMIT = 0.2
OPERATORS_S, MEASURE_S = 6.0, 1.0


def models(device: torch.device, smoke: bool) -> dict[str, Callable[[], fo.Recipe]]:
    if device.type == "cpu":
        return {name: lambda name=name: small_recipe(name) for name in SMALL}  # type: ignore[misc]
    return {name: lambda make=make: make(smoke) for name, make in MODELS.items()}  # type: ignore[misc]


def forms(job: Job, device: torch.device) -> Iterator[tuple[str, Settings]]:
    images = has_convolution(job.model)
    for precision in ("fp32", "bf16") if device.type == "cpu" else ():
        yield precision, Settings(device="cpu", precision=precision, channels_last=images)
    if device.type == "cuda":
        large = (job.data.vocabulary or 0) > 4096
        head: dict[str, Any] = {"loss_head": "joined", "vocabulary_padding": 64} if large else {}
        how: dict[str, Any] = {"device": str(device), "precision": "bf16", "graph": True, "channels_last": images, **head}
        yield "bf16, graph", Settings(deterministic=False, **how)
        yield "bf16, graph, compiled", Settings(deterministic=False, compile="on", **how)


def measured(bench: Bench, settings: Settings) -> tuple[float | None, str]:
    eager = Settings(device=settings.device, precision=settings.precision, deterministic=settings.deterministic)
    found = bench.attempt(Ask(settings.to_dict(), None, eager.to_dict(), MEASURE_S))
    return (statistics.median(found.steps_s), "") if found.steps_s else (None, f"{found.failure}: {found.why}")


def compared(job: Job, form: Settings, ceilings: Ceilings, bench: Bench, device: torch.device) -> dict[str, Any]:
    began_s = time.perf_counter()
    operations = work_of(job, form).operations
    traced_s = time.perf_counter() - began_s
    timed = with_operators(ceilings, device, operations, OPERATORS_S)
    told = predict(job, form, timed)
    took_s = time.perf_counter() - began_s - traced_s
    step_s, why = measured(bench, form)
    error = told.step_s / step_s - 1 if told.step_s and step_s else None
    return {
        "predicted_s": told.step_s, "measured_s": step_s, "why_not": why, "error": error, "bound": told.bound,
        "from_ceilings_alone_s": predict(job, form, ceilings).step_s, "traced_in_s": traced_s, "timed_in_s": took_s,
        "operators": len(operations), "timed": sum(one is not None for one in timed.operators.values()),
    }  # fmt: skip


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--only", nargs="+", help="names of models, in this order")
    parser.add_argument("--go-on", type=Path, metavar="JSON", help="an earlier result: what is not found anew counts")
    asked = parser.parse_args()
    device = pick_device("auto")
    report = Report("prediction", str(__doc__), device)
    ceilings = probe(device, None, quick=True).ceilings
    named = models(device, asked.smoke)
    chosen = asked.only or list(named)[: 1 if asked.smoke else None]
    if asked.go_on is not None:
        take_over(asked.go_on, report)
    for name in chosen:
        if asked.within and time.monotonic() - BEGAN_S > asked.within:
            print(f"{name}: no time was left", file=sys.stderr)
            continue
        job = build_job(named[name]())
        for form, settings in forms(job, device):
            bench = Bench(job, device)
            found = compared(job, settings, ceilings, bench, device)
            bench.close()
            report.conditions[f"{name}, {form}"] = found
            told = "none" if found["error"] is None else f"{found['error']:+.0%}"
            print(f"{name}, {form}: {told} {found['why_not']}", file=sys.stderr, flush=True)
            sum_up(report)
            if asked.out is not None:
                report.write(asked.out, asked.quick or asked.smoke)  # a compiler may take all the time that is left
    return report.finish(asked)


def take_over(path: Path, report: Report) -> None:
    """What an earlier result found is part of this one, as long as it is not found anew."""
    earlier = json.loads(path.read_text())
    if earlier["machine"]["device"] != (here := machine(report.device)["device"]):
        raise SystemExit(f"{path} is from another device: {earlier['machine']['device']}, not {here}")
    report.conditions |= {
        name: {"source": earlier["machine"].get("source"), **found} for name, found in earlier["conditions"].items()
    }


def sum_up(report: Report) -> None:
    errors: dict[str, list[float]] = {}
    for name, found in report.conditions.items():
        if found["error"] is not None:
            errors.setdefault(name.partition(", ")[2], []).append(abs(found["error"]))
    report.bars.clear()
    for form, values in errors.items():
        report.arm(f"error, {form}", f"of the measured, {len(values)} models", values)
        if report.device.type != "cpu":
            report.bars.append(Bar(f"median error, {form}", statistics.median(values), LIMIT, at_least=False))


if __name__ == "__main__":
    raise SystemExit(main())
