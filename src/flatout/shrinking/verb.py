"""`shrink`: from a package to a smaller and faster one with a receipt, or the same model and the reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flatout import __version__
from flatout.base.answering_child import NoAnswer
from flatout.base.errors import DataError, FlatoutError, MachineError, ModelError, UsageError
from flatout.base.units import parse_seconds
from flatout.data.others import other_rows
from flatout.machine.facts import read_facts
from flatout.machine.meters import Meters
from flatout.measure.receipt import Receipt
from flatout.measure.time_limit import TimeLimit
from flatout.packaging.derived import RECEIPT, NewModel, write_derived
from flatout.packaging.folder import check_is_new
from flatout.packaging.onnx_libraries import library
from flatout.packaging.own_data import data_behind
from flatout.packaging.package import Package
from flatout.packaging.parity import TOLERANCES
from flatout.shrinking.fallback import Fallback
from flatout.shrinking.goal import ShrinkGoal, parse_goal
from flatout.shrinking.metric import Metric, metrics_of
from flatout.shrinking.rows import CALIBRATING, JUDGING, TUNING, RowSets, rows_of_file, rows_of_run
from flatout.shrinking.search import ShrinkSearch
from flatout.shrinking.trained_steps import TrainedSteps
from flatout.shrinking.trials import JUDGED_BATCH, ShrinkTrials, latency_s
from flatout.shrinking.verdict import verdict_of
from flatout.shrinking.workshop.workshop import Workshop
from flatout.store.tensors import read_tensors

_NEED = "shrink"
_START_S = 600.0
_SPREAD = 2.0  # times the difference between batches of two sizes


@dataclass(frozen=True)
class Shrunk:
    """`kept`: names of the changes; none if nothing paid. `sentence` says what came out, in one."""

    package: Package
    receipt: Receipt
    about: Mapping[str, Any]
    kept: tuple[str, ...]
    sentence: str
    goal_met: bool
    is_interrupted: bool


def shrink(
    package: Package,
    out: Path | str = "shrunk",
    *,
    goal: str | None = None,
    margin: float | None = None,
    batches: Sequence[int] = (1,),
    data: Any = None,
    within: str = "10 min",
    training: str | None = None,
    cache: Path | None = None,
    isolated: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Shrunk:
    """Write a package with the same answers, within `margin`, that is faster here; or smaller, if `goal` says so.

    `margin`: points of accuracy or AUC, nats of loss, percent of an error. `batches`: rows in a call, as they are served.
    `data`: other labelled rows than those of the package's run. `training`: how long smaller models may be trained, together;
    by default half of `within`; "off": not at all.
    """
    target, wanted = Path(out), parse_goal(goal)
    check_is_new(target)
    _check(margin, batches)
    metrics = metrics_of(str(package.card["objective"]), margin)
    for name in ("onnx", "onnxruntime"):
        library(name, _NEED)
    if not (package.path / "model.onnx").exists():
        raise ModelError(f"{package.path} has no model.onnx, which shrink starts from: {_why_no_onnx(package)}")
    limit = TimeLimit(parse_seconds(within))
    training_s = limit.limit_s / 2 if training is None else 0.0 if training == "off" else parse_seconds(training)
    say("reading rows")
    rows = _rows(package, data, cache, say)
    with Workshop(package, rows, str(package.card["objective"]), isolated=isolated, cache=cache) as workshop:
        start = _started(workshop, batches[0])
        runtime = min(start["seconds"], key=lambda name: start["seconds"][name])
        workshop.serve_with(runtime)
        trials = ShrinkTrials(workshop.ask, metrics, batches, wanted, start["bytes"], limit, say)
        fallback = Fallback(workshop.ask, metrics, batches[0], max(JUDGED_BATCH, *batches), say)
        trained = TrainedSteps(workshop.ask, training_s, limit, say)
        search = ShrinkSearch(trials, fallback, start["changes"], trained, wanted, batches, limit, say)
        receipt = search.run()
        if search.result is None:
            if search.is_interrupted:
                raise KeyboardInterrupt
            raise MachineError(f"nothing can be compared with {package.path}: {receipt.stopped}")
        receipt = _described(receipt)
        about = _about(package, rows, metrics, batches, wanted, runtime, start, trials, fallback, search)
        about["verdict"] = verdict_of(receipt, about)
        made = _model(workshop, search) if search.kept else None
        names = [one.named for one in search.kept]
        kept = {RECEIPT: {"receipt": receipt.to_dict(), "about": about}}
        shrunk = write_derived(package, target, made, {"changes": names}, kept)
    verdict = about["verdict"]
    return Shrunk(shrunk, receipt, about, tuple(names), verdict["sentence"], verdict["goal_met"], search.is_interrupted)


def _check(margin: float | None, batches: Sequence[int]) -> None:
    if margin is not None and not 0 < margin < 100:
        raise UsageError(f"--margin is above 0 and below 100, got {margin:g}: no number of rows proves that nothing is lost")
    if not batches or any(one < 1 for one in batches):
        raise UsageError(f"--batch takes numbers of rows, 1 or more, got {', '.join(map(str, batches)) or 'none'}")


def _why_no_onnx(package: Package) -> str:
    why = package.card["parity"].get("onnxruntime")
    if package.card["code"] is not None:
        return "the model could not be written as a graph, only as the import path of its code"
    return str(why) if isinstance(why, str) else "export the run again with the extra: pip install 'flatout[export]'"


def _rows(package: Package, data: Any, cache: Path | None, say: Callable[[str], None]) -> RowSets:
    if data is not None:
        name = str(data) if isinstance(data, str | Path) else "the data"
        return rows_of_file(package, other_rows(package.fitted, data, targets=True, cache=cache, say=say), name)
    try:
        own = data_behind(package, cache)
    except UsageError:
        raise
    except (FlatoutError, OSError) as error:
        why = str(error).partition("\n")[0]
        remedy = "" if "--data" in why else "; give labelled rows with --data"
        raise DataError(f"the data of {package.card['run']['name']} can't be used: {why}{remedy}") from error
    return rows_of_run(package, own)


def _started(workshop: Workshop, batch: int) -> dict[str, Any]:
    try:
        start = workshop.ask({"ask": "start", "batch": batch}, _START_S)
    except NoAnswer as none:
        raise MachineError(f"the package can't be run: {none}") from none
    if "onnxruntime" not in start["seconds"]:
        raise ModelError(f"onnxruntime does not give the package's outputs here: {start['why'].get('onnxruntime')}")
    return start


def _model(workshop: Workshop, search: ShrinkSearch) -> NewModel:
    assert search.result is not None
    name = search.result.name
    try:
        told = workshop.ask({"ask": "outputs", "name": name}, _START_S)
    except NoAnswer as none:
        raise ModelError(f"the kept model can't be run again: {none}; nothing was written") from none
    core = library("onnx").load(workshop.folder / f"{name}.onnx")
    # other kernels round differently: they may be as far off as the change itself was, and no further
    tolerance = max(TOLERANCES["fp32"], told["from_source"], _SPREAD * told["between_batches"])
    return NewModel(core, read_tensors(Path(told["file"])), tolerance)


def _described(receipt: Receipt) -> Receipt:
    facts = read_facts()
    versions = {
        "flatout": __version__,
        "torch": torch.__version__,
        **{n: library(n).__version__ for n in ("onnx", "onnxruntime")},
    }
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return replace(receipt, machine=f"{facts.cpu.model}, {torch.get_num_threads()} threads", versions=versions, at=at)


def _about(
    package: Package,
    rows: RowSets,
    metrics: Sequence[Metric],
    batches: Sequence[int],
    goal: ShrinkGoal,
    runtime: str,
    start: Mapping[str, Any],
    trials: ShrinkTrials,
    fallback: Fallback,
    search: ShrinkSearch,
) -> dict[str, Any]:
    result = search.result if search.kept else None
    final = {str(batch): one for batch, one in trials.final.items()} if search.kept else {}
    return {
        "source": {"path": str(package.path), "hash": package.folder.hash, "bytes": start["bytes"], "runtime": runtime,
                   "seconds": start["seconds"], "why_not": start["why"], "latencies": trials.source_latencies,
                   "metrics": trials.source_values() if search.result is not None else {}},
        "goal": {"kind": goal.kind, "amount": goal.amount, "percentile": goal.percentile, "words": str(goal)},
        "batches": list(batches),
        "metrics": [{"name": one.name, "unit": one.unit, "margin": one.margin, "words": one.words} for one in metrics],
        "rows": {"origin": rows.origin, **{name: rows.count(name) for name in (CALIBRATING, TUNING, JUDGING)}},
        "looks": trials.looks,
        "layers": fallback.to_dict(),
        "kept": [one.to_dict() for one in search.kept],
        "final": final,
        "size": {"was": start["bytes"], "now": result.bytes if result is not None else start["bytes"]},
        "latency_s": _latency(trials, final, batches[0], goal),
        "energy": Meters(torch.device("cpu")).why_unavailable,
    }  # fmt: skip


def _latency(trials: ShrinkTrials, final: Mapping[str, Any], batch: int, goal: ShrinkGoal) -> float | None:
    latencies = final[str(batch)]["now"] if final else trials.source_latencies
    return latency_s(latencies, goal.percentile) if latencies else None
