"""A package made from another one: another model inside, the same rows in and names out, with a card that says where from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flatout import __version__
from flatout.base.errors import ModelError
from flatout.packaging.folder import MANIFEST, new_folder, write_manifest, write_parsed
from flatout.packaging.onnx_core import whole_model, with_core
from flatout.packaging.onnx_program import OnnxProgram
from flatout.packaging.package import Package, open_package
from flatout.packaging.parity import TOLERANCES, compare, mean_error
from flatout.packaging.program import Program
from flatout.packaging.runtimes.choice import runtime_named
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.packaging.runtimes.runtime import Parts, Runtime
from flatout.store.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    import onnx

RECEIPT = "shrink.json"
_MODEL = (
    "program.json",
    "code.json",
    "onnx.json",
    "weights.safetensors",
    "model.onnx",
    "samples.safetensors",
    "card.json",
    RECEIPT,
)
_OTHER = "the written file does not give the outputs that were judged: {}; nothing was written"
_SAME = 0.1  # of the change's own difference


@dataclass(frozen=True)
class NewModel:
    """`core` computes from prepared rows; `outputs` are its own on the samples, which other machines must give too, within
    `tolerance`."""

    core: onnx.ModelProto
    outputs: Mapping[str, Tensor]
    tolerance: float


@dataclass(frozen=True)
class NewProgram:
    """Another program of the same inputs and outputs, run on `device` by `runtime`. The rest is as of a `NewModel`."""

    program: Program
    weights: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    tolerance: float
    device: torch.device
    runtime: str


def write_derived(
    source: Package, out: Path, model: NewModel | NewProgram | None, shrunk: Mapping[str, Any], files: Mapping[str, Any]
) -> Package:
    """`shrunk`: for the card. `files`: JSON to keep in the package. Without a `model`, that of `source` is copied."""
    kept = [name for name in source.folder.names() if name not in (RECEIPT, MANIFEST) and (model is None or name not in _MODEL)]
    card = {**source.card, "shrunk": {"from": {"path": str(source.path.resolve()), "hash": source.folder.hash}, **shrunk}}
    with new_folder(out) as folder:
        for name in kept:
            (folder / name).write_bytes(source.folder.read(name))
        if model is not None:
            name, parity = _write_model(folder, source, model)
            card |= {"tolerance": model.tolerance, "code": None, "parity": {name: parity}}
        write_parsed(folder, "card.json", card)
        for name, content in files.items():
            write_parsed(folder, name, content)
        write_manifest(folder, __version__)
    return open_package(out)


def _write_model(folder: Path, source: Package, model: NewModel | NewProgram) -> tuple[str, dict[str, object]]:
    """The runtime, and the comparison of what was written with the outputs that were judged."""
    if isinstance(model, NewProgram):
        runtime: Runtime = _written_program(folder, source, model)
    else:
        write_parsed(folder, "onnx.json", OnnxProgram(source.program.inputs, source.program.outputs).to_json())
        whole = with_core(whole_model(source.path / "model.onnx"), model.core)
        path = folder / "model.onnx"
        path.write_bytes(whole.SerializeToString())
        runtime = OnnxRuntime(path, torch.device("cpu"))
    samples = replace(source.samples, outputs=dict(model.outputs))
    write_tensors(folder / "samples.safetensors", samples.tensors())
    parity = compare(runtime.run, samples, model.tolerance)
    if not parity.holds:
        raise ModelError(_OTHER.format(parity.problem))
    # the tolerance is for other kernels, and may be as wide as the change itself: the source would pass it too
    made = {name: one.cpu() for name, one in runtime.run(samples.rows).items()}
    here, change = mean_error(made, model.outputs), mean_error(source.samples.outputs, model.outputs)
    if here > max(TOLERANCES["fp32"], _SAME * change):
        raise ModelError(
            _OTHER.format(f"they differ by {here:.2g} in the mean, and the change made a difference of {change:.2g}")
        )
    return runtime.name, parity.to_json()


def _written_program(folder: Path, source: Package, model: NewProgram) -> Runtime:
    write_parsed(folder, "program.json", model.program.to_json())
    write_tensors(folder / "weights.safetensors", dict(model.weights))
    precision = source.card["precision"] if model.device.type == "cuda" else "fp32"
    parts = Parts(model.program, read_tensors(folder / "weights.safetensors"), model.device, precision)
    return runtime_named(model.runtime).load(parts)
