"""`export`: a finished run as a package. Nothing is written unless a runtime gives the run's own outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from flatout import __version__
from flatout.base.errors import FlatoutError, MissingExtra, ModelError, NotExportable, RecipeError, StoreError
from flatout.data.fitted import Fitted
from flatout.data.fitted.table_rows import TableHost
from flatout.data.source import Batch
from flatout.engine.job import Job
from flatout.models.adapters import merged
from flatout.objectives.objective import Objective
from flatout.packaging.answering import Answering, Preparation
from flatout.packaging.capture import Captured, capture
from flatout.packaging.card import card_of, signature_of
from flatout.packaging.code_program import CapturedCode, CodeProgram, of_code
from flatout.packaging.folder import check_is_new, new_file, new_folder, write_manifest, write_parsed
from flatout.packaging.onnx_file import complete_onnx
from flatout.packaging.onnx_photos import full_size_difference
from flatout.packaging.onnx_weights import outside
from flatout.packaging.own_data import data_of
from flatout.packaging.package import Package, open_package
from flatout.packaging.parity import compare
from flatout.packaging.program import Program
from flatout.packaging.runtimes.choice import RUNTIMES, Measured, fastest, measure
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.packaging.runtimes.runtime import Parts
from flatout.packaging.samples import SampleRows, Samples, made_up_rows, rows_of_data
from flatout.packaging.statistics import STATISTICS, RowStatistics, statistics_of
from flatout.recipe.build import build_job
from flatout.runs.in_use import as_trained
from flatout.runs.record import Run
from flatout.runs.trained import job_of, trained_model
from flatout.store.tensors import write_tensors

if TYPE_CHECKING:
    import onnx

_CAPTURE_ROWS = 6


@dataclass(frozen=True)
class Exported:
    """`notes` are sentences for the user: what was left out, and why."""

    package: Package
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]


def export(run: Run, out: Path, *, cache: Path | None = None, say: Callable[[str], None] = lambda line: None) -> Exported:
    """ModelError if the model can't be exported, or if no runtime agrees with the run."""
    check_is_new(out)
    _check_finished(run)
    notes: list[str] = []
    say("reading samples of the run's data")
    job, drawn, statistics = _job_and_samples(run, cache, notes)
    answering = _answering(run, job)
    samples = Samples(drawn.rows, answering.answers(drawn.rows), drawn.origin, drawn.raw, drawn.photos)
    say("writing the model as a graph")
    fitted = job.data.fitted
    captured = _program(run, answering, samples.rows, fitted, notes)
    program, weights = captured.program, captured.weights
    with new_folder(out) as folder:
        _write(folder, program, weights, fitted, samples)
        if statistics is not None:
            write_parsed(folder, STATISTICS, statistics.to_json())
        onnx = None
        if isinstance(captured, Captured):
            say("writing ONNX")
            onnx = _write_onnx(folder, captured, fitted, samples, notes)
        parts = Parts(program, weights, torch.device("cpu"), onnx=onnx)
        measured = measure(parts, samples, [kind for kind in RUNTIMES if not kind.needs_compiler], (1,), say)
        fastest(measured, 1)  # raises if none agrees
        code = program.import_path if isinstance(program, CodeProgram) else None
        card = card_of(run, job.objective.name, samples, measured, code)
        write_parsed(folder, "card.json", card)
        label = fitted.host.label.name if isinstance(fitted.host, TableHost) else "y"
        signature = signature_of(fitted.signature, program.outputs, job.objective.name, label)
        write_parsed(folder, "signature.json", signature)
        write_manifest(folder, __version__)
    package = open_package(out)
    return Exported(package, tuple(measured), tuple(notes))


def _check_finished(run: Run) -> None:
    status = run.folder.status
    if status != "finished":
        todo = "run the same command again to finish it" if status in ("stopped", "interrupted", "failed") else "wait for it"
        if status == "diverged":
            todo = "its weights are not finite; train again with a lower lr"
        raise StoreError(f"{run.name} is {status}, and only a finished run is exported: {todo}")


def _job_and_samples(run: Run, cache: Path | None, notes: list[str]) -> tuple[Job, SampleRows, RowStatistics | None]:
    """With samples and statistics of the run's data if it is still there."""
    try:
        data = data_of(run, cache)
        return build_job(run.recipe, cache, data=data, trained=True), rows_of_data(data), statistics_of(data)
    except (FlatoutError, OSError) as error:
        why = "; ".join(error.problems) if isinstance(error, RecipeError) else str(error).partition("\n")[0]
    job = job_of(run.folder, run.recipe)
    notes.append(f"samples are made up at random: the run's data can't be used ({why})")
    return job, made_up_rows(job.data.fitted), None


def _answering(run: Run, job: Job) -> Answering:
    model = as_trained(run.plan.settings, merged(trained_model(run.folder, job)), torch.device("cpu")).eval()
    preparation = Preparation(job.data.fitted)
    return Answering(model, preparation.inside, job.objective, list(preparation.columns)).eval()


def _program(run: Run, answering: Answering, rows: Batch, fitted: Fitted, notes: list[str]) -> Captured | CapturedCode:
    """A graph; if the model can't be written as one, the import path of its code, and a note."""
    try:
        return _captured(answering, rows, fitted)
    except ModelError as error:
        made = of_code(answering, rows, run.folder.read("recipe.json"), run.folder.read("data.json"), error)
        notes.append(f"the package needs {made.program.import_path} to be installed where it runs: {error}")
        return made


def _captured(answering: Answering, rows: Batch, fitted: Fitted) -> Captured:
    few: dict[str, Tensor] = {name: column[:_CAPTURE_ROWS].clone() for name, column in rows.items()}
    host = fitted.host
    tokens = host.kind == "text" or (host.kind == "arrays" and any(raw.kind == "tokens" for raw in host.inputs))
    return capture(answering, few, ("x",) if tokens and few["x"].dim() == 2 else ())


def onnx_of_model(model: nn.Module, objective: Objective, fitted: Fitted, rows: Batch) -> onnx.ModelProto:
    """Another model in the place of a run's, with its preparation and its answers, as the export of that run writes it."""
    preparation = Preparation(fitted)
    answering = Answering(model, preparation.inside, objective, list(preparation.columns)).eval()
    return complete_onnx(_captured(answering, rows, fitted), fitted, rows)[0]


def _write(folder: Path, program: Program | CodeProgram, weights: dict[str, Tensor], fitted: Fitted, samples: Samples) -> None:
    write_tensors(folder / "weights.safetensors", weights)
    write_parsed(folder, "program.json" if isinstance(program, Program) else "code.json", program.to_json())
    write_parsed(folder, "fitted.json", fitted.to_json())
    write_tensors(folder / "samples.safetensors", samples.tensors())
    if samples.raw is not None:
        write_parsed(folder, "samples.json", samples.raw)


def _write_onnx(folder: Path, captured: Captured, fitted: Fitted, samples: Samples, notes: list[str]) -> Path | None:
    """None, and a note, if ONNX lacks an operator or the libraries are not installed."""
    path = folder / "model.onnx"
    try:
        model, note = complete_onnx(captured, fitted, samples.rows)
        path.write_bytes(outside(model, folder / "weights.safetensors").SerializeToString())
    except (NotExportable, MissingExtra) as error:
        notes.append(f"without model.onnx: {error}")
        return None
    if note is not None:
        notes.append(note)
    return path


def export_onnx(run: Run, out: Path, *, cache: Path | None = None, say: Callable[[str], None] = lambda line: None) -> list[str]:
    """One ONNX file with its weights, which takes raw inputs of tables and photos. Returns notes for the user.

    NotExportable if ONNX lacks an operator; ModelError if onnxruntime does not give the run's outputs.
    """
    check_is_new(out)
    _check_finished(run)
    notes: list[str] = []
    say("reading samples of the run's data")
    job, drawn, _ = _job_and_samples(run, cache, notes)
    answering = _answering(run, job)
    samples = Samples(drawn.rows, answering.answers(drawn.rows), drawn.origin, drawn.raw, drawn.photos)
    say("writing ONNX")
    fitted = job.data.fitted
    captured = _captured(answering, samples.rows, fitted)
    model, note = complete_onnx(captured, fitted, samples.rows)
    if note is not None:
        notes.append(note)
    with new_file(out) as aside:
        aside.write_bytes(model.SerializeToString())
        say("comparing onnxruntime with the run")
        parity = compare(OnnxRuntime(aside, torch.device("cpu")).run, samples)
        if not parity.holds:
            raise ModelError(f"onnxruntime does not give the run's outputs: {parity.problem}; nothing was written")
        notes.append(f"same outputs as the run on {len(samples)} samples, largest difference {parity.worst:.1g}")
        notes += _photo_note(aside, fitted, samples)
    return notes


def _photo_note(path: Path, fitted: Fitted, samples: Samples) -> list[str]:
    """How far full-size pixels are from files decoded as in training, which is smaller and faster."""
    if not samples.photos:
        return []
    far = full_size_difference(path, samples)
    return [f"full-size pixels change a probability by up to {far:.2g}: training decodes a JPEG at a smaller scale"]
