"""On a GPU steps are predicted within 20% in the median, five models in two forms; on a CPU six small ones show how well."""

# No training is compared here: what a step takes in each form, beside what was predicted before it was run. On a GPU the forms
# are bf16 in a graph, and compiled as well; on a CPU fp32 and bf16.

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from _small_models import SMALL
from _small_models import recipe as small_recipe
from evidence import BEGAN_S, Bar, Report, options
from record_knobs import MODELS

import flatout as fo
from flatout.building import build_job
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
    parser.add_argument("--only", nargs="+", help="names of models")
    asked = parser.parse_args()
    device = pick_device("auto")
    report = Report("foretold", str(__doc__), device)
    ceilings = probe(device, None, quick=True).ceilings
    errors: dict[str, list[float]] = {}
    for name, make in models(device, asked.smoke).items():
        if (asked.only and name not in asked.only) or (asked.within and time.monotonic() - BEGAN_S > asked.within):
            continue
        job = build_job(make())
        for form, settings in forms(job, device):
            bench = Bench(job, device)
            found = compared(job, settings, ceilings, bench, device)
            bench.close()
            report.conditions[f"{name}, {form}"] = found
            told = "none" if found["error"] is None else f"{found['error']:+.0%}"
            print(f"{name}, {form}: {told} {found['why_not']}", file=sys.stderr, flush=True)
            if found["error"] is not None:
                errors.setdefault(form, []).append(abs(found["error"]))
        if asked.smoke:
            break
    for form, values in errors.items():
        report.arm(f"error, {form}", f"of the measured, {len(values)} models", values)
        if device.type != "cpu":
            report.bars.append(Bar(f"median error, {form}", statistics.median(values), LIMIT, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
