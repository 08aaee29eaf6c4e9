"""From a package to a smaller and faster one with a receipt, or the same model and the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flatout.base.answering_child import NoAnswer
from flatout.base.errors import DataError, FlatoutError, MachineError, ModelError, UsageError
from flatout.base.files import parse_json
from flatout.data.others import other_rows
from flatout.machine.device import pick_device
from flatout.measure.receipt import Receipt
from flatout.measure.time_limit import TimeLimit
from flatout.packaging.derived import RECEIPT, NewModel, NewProgram, write_derived
from flatout.packaging.folder import check_is_new
from flatout.packaging.onnx_libraries import library
from flatout.packaging.own_data import data_behind
from flatout.packaging.package import Package
from flatout.packaging.parity import TOLERANCES
from flatout.packaging.program import Program
from flatout.shrinking.about import ShrinkBasis, about_of, described
from flatout.shrinking.fallback import Fallback
from flatout.shrinking.metric import metrics_of
from flatout.shrinking.request import ShrinkRequest
from flatout.shrinking.rows import RowSets, rows_of_file, rows_of_run
from flatout.shrinking.search import ShrinkSearch
from flatout.shrinking.trained_steps import TrainedSteps
from flatout.shrinking.trials import JUDGED_BATCH, ShrinkTrials
from flatout.shrinking.verdict import verdict_of
from flatout.shrinking.workshop.workshop import Workshop
from flatout.store.tensors import read_tensors

_NEED = "shrink"
_START_S = 600.0
_SPREAD = 2.0  # times the difference between batches of two sizes
_OF_GOAL = 0.45  # of a latency goal: a request may have to wait for one batch before its own, and for the network

Say = Callable[[str], None]


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

    def __str__(self) -> str:
        return f"{self.package.path}: {self.sentence}"


def make_smaller(
    package: Package,
    out: Path,
    request: ShrinkRequest,
    *,
    cache: Path | None = None,
    isolated: bool = True,
    say: Say = lambda line: None,
) -> Shrunk:
    """Write a package to `out`. `isolated`: candidates are made in a process of their own."""
    check_is_new(out)
    metrics = metrics_of(str(package.card["objective"]), request.margin)
    device = pick_device(request.device)
    of_programs = _is_of_programs(device)
    _check_model(package, of_programs)
    limit = TimeLimit(request.within_s)
    say("reading rows")
    rows = _rows(package, request.data, cache, say)
    with Workshop(package, rows, str(package.card["objective"]), isolated=isolated, cache=cache,
                  device=str(device) if of_programs else "") as workshop:  # fmt: skip
        if of_programs:
            say("compiling the model, once for each size of a batch: a large one takes minutes")
        start = _started(workshop, (request.batches or (1,))[0])
        runtime = min(start["seconds"], key=lambda name: start["seconds"][name])
        workshop.serve_with(runtime)
        batches, goal = request.batches or _usual_batches(workshop, request.served_within_s), request.goal
        basis = ShrinkBasis(package, rows, metrics, batches, goal, runtime, start, device, of_programs)
        trials = ShrinkTrials(workshop.ask, metrics, batches, goal, start["bytes"], limit, say)
        fallback = Fallback(workshop.ask, metrics, batches[0], max(JUDGED_BATCH, *batches), limit, say)
        trained = TrainedSteps(workshop.ask, request.training_s, limit, say)
        search = ShrinkSearch(trials, fallback, start["changes"], trained, goal, batches, limit, say)
        receipt = search.run()
        if search.result is None:
            if search.is_interrupted:
                raise KeyboardInterrupt
            raise MachineError(f"nothing can be compared with {package.path}: {receipt.stopped}")
        receipt = described(receipt, basis)
        about = about_of(basis, trials, fallback, search)
        about["verdict"] = verdict_of(receipt, about)
        made = _model(workshop, search, basis) if search.kept else None
        names = [one.named for one in search.kept]
        kept = {RECEIPT: {"receipt": receipt.to_dict(), "about": about}}
        shrunk = write_derived(package, out, made, {"changes": names}, kept)
    verdict = about["verdict"]
    return Shrunk(shrunk, receipt, about, tuple(names), verdict["sentence"], verdict["goal_met"], search.is_interrupted)


def _usual_batches(workshop: Workshop, within_s: float | None) -> tuple[int, ...]:
    """One row; and with a latency goal as many as a server that keeps it runs together, if that is more."""
    if within_s is None:
        return (1,)
    try:
        most = int(workshop.ask({"ask": "permitted", "most_s": _OF_GOAL * within_s}, _START_S)["batch"])
    except NoAnswer as none:
        raise MachineError(f"the package can't be run: {none}") from none
    return (1, most) if most > 1 else (1,)


def _is_of_programs(device: torch.device) -> bool:
    """onnxruntime's kernels are the fastest on a CPU; on a GPU the package's program is run by PyTorch."""
    return device.type != "cpu"


def _check_model(package: Package, of_programs: bool) -> None:
    if of_programs:
        if not isinstance(package.program, Program):
            raise ModelError(f"{package.path} has no graph of the model, which shrink starts from on a GPU")
        return
    for name in ("onnx", "onnxruntime"):
        library(name, _NEED)
    if not (package.path / "model.onnx").exists():
        raise ModelError(f"{package.path} has no model.onnx, which shrink starts from: {_why_no_onnx(package)}")


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
    if not start["seconds"]:
        why = "; ".join(f"{name}: {one}" for name, one in start["why"].items())
        raise ModelError(f"no runtime that shrink changes gives the package's outputs here: {why}")
    return start


def _model(workshop: Workshop, search: ShrinkSearch, basis: ShrinkBasis) -> NewModel | NewProgram:
    assert search.result is not None
    name = search.result.name
    try:
        told = workshop.ask({"ask": "outputs", "name": name}, _START_S)
    except NoAnswer as none:
        raise ModelError(f"the kept model can't be run again: {none}; nothing was written") from none
    outputs, file = read_tensors(Path(told["file"])), workshop.folder / name
    # other kernels round differently: they may be as far off as the change itself was, and no further
    far = max(told["from_source"], _SPREAD * told["between_batches"])
    if not basis.of_programs:
        return NewModel(library("onnx").load(file.with_suffix(".onnx")), outputs, max(TOLERANCES["fp32"], far))
    program = Program.from_json(parse_json(file.with_suffix(".json").read_bytes()))
    weights, tolerance = read_tensors(file.with_suffix(".safetensors")), max(TOLERANCES[basis.package.card["precision"]], far)
    return NewProgram(program, weights, outputs, tolerance, basis.device, basis.runtime)
