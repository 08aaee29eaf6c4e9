"""What a receipt says besides its tries: the source, the goal, the rows, the machine, and what came out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flatout import __version__
from flatout.machine.facts import read_facts
from flatout.machine.meters import Meters
from flatout.measure.receipt import Receipt
from flatout.packaging.onnx_libraries import library
from flatout.packaging.package import Package
from flatout.shrinking.fallback import Fallback
from flatout.shrinking.goal import ShrinkGoal
from flatout.shrinking.latencies import latency_s
from flatout.shrinking.metric import Metric
from flatout.shrinking.rows import CALIBRATING, JUDGING, TUNING, RowSets
from flatout.shrinking.search import ShrinkSearch
from flatout.shrinking.trials import ShrinkTrials


@dataclass(frozen=True)
class ShrinkBasis:
    """What is searched on: `start` has the times of the source by runtime, of which `runtime` serves it."""

    package: Package
    rows: RowSets
    metrics: Sequence[Metric]
    batches: Sequence[int]
    goal: ShrinkGoal
    runtime: str
    start: Mapping[str, Any]
    device: torch.device
    of_programs: bool


def described(receipt: Receipt, basis: ShrinkBasis) -> Receipt:
    libraries = {} if basis.of_programs else {name: library(name).__version__ for name in ("onnx", "onnxruntime")}
    versions = {"flatout": __version__, "torch": torch.__version__, **libraries}
    cpu = f"{read_facts().cpu.model}, {torch.get_num_threads()} threads"
    machine = cpu if basis.device.type == "cpu" else f"{torch.cuda.get_device_name(basis.device)}, {cpu}"
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return replace(receipt, machine=machine, versions=versions, at=at)


def about_of(basis: ShrinkBasis, trials: ShrinkTrials, fallback: Fallback, search: ShrinkSearch) -> dict[str, Any]:
    package, rows, start, goal = basis.package, basis.rows, basis.start, basis.goal
    result = search.result if search.kept else None
    final = {str(batch): one for batch, one in trials.final.items()} if search.kept else {}
    return {
        "source": {"path": str(package.path), "hash": package.folder.hash, "bytes": start["bytes"], "runtime": basis.runtime,
                   "seconds": start["seconds"], "why_not": start["why"], "latencies": trials.source_latencies,
                   "metrics": trials.source_values() if search.result is not None else {}},
        "goal": {"kind": goal.kind, "amount": goal.amount, "percentile": goal.percentile, "words": str(goal)},
        "batches": list(basis.batches),
        "metrics": [{"name": one.name, "unit": one.unit, "margin": one.margin, "words": one.words} for one in basis.metrics],
        "rows": {"origin": rows.origin, "repeated": rows.repeated,
                 **{name: rows.count(name) for name in (CALIBRATING, TUNING, JUDGING)}},
        "looks": trials.looks,
        "layers": fallback.to_dict(),
        "kept": [one.to_dict() for one in search.kept],
        "final": final,
        "size": {"was": start["bytes"], "now": result.bytes if result is not None else start["bytes"]},
        "latency_s": _latency(trials, final, goal),
        "energy": Meters(basis.device).why_unavailable if basis.device.type == "cpu" else "not measured on a GPU yet",
    }  # fmt: skip


def _latency(trials: ShrinkTrials, final: Mapping[str, Any], goal: ShrinkGoal) -> float | None:
    """Of the first batch size."""
    latencies = next(iter(final.values()))["now"] if final else trials.source_latencies
    return latency_s(latencies, goal.percentile) if latencies else None
