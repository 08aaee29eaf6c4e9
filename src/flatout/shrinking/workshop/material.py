"""What changes are made from: the float32 model with constants folded, calibration rows, and the ranges seen on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flatout.data.source import Batch
from flatout.packaging.onnx_core import core_of, whole_model
from flatout.packaging.onnx_front import prepared_inputs
from flatout.packaging.onnx_libraries import library
from flatout.shrinking.changes.ranges import FIRST_ROWS, Ranges, steady_ranges

if TYPE_CHECKING:
    import onnx

_TUNING_ROWS = 512
_MOMENT_ROWS, _WIDEST = 512, 4096
_ERRORS = 3  # threads print nothing below this level
Arrays = Mapping[str, np.ndarray[Any, Any]]


class PackageMaterial:
    def __init__(self, model: Path, folder: Path, calibrating: Batch, tuning: Batch) -> None:
        self._calibrating, self._tuning = calibrating, tuning
        core = core_of(whole_model(model))
        self._base = _folded(core, folder / "base.onnx")
        self._columns = {value.name: column for column, value in prepared_inputs(core).items()}
        self._ranges: dict[tuple[str, ...], Ranges] = {}
        self._wanted: list[np.ndarray[Any, Any]] | None = None

    @property
    def model(self) -> onnx.ModelProto:
        made: onnx.ModelProto = library("onnx").ModelProto()
        made.CopyFrom(self._base)
        return made

    @property
    def calibrating(self) -> Batch:
        return self._calibrating

    @property
    def tuning(self) -> Batch:
        return self._tuning

    def ranges(self, tensors: Sequence[str]) -> Ranges:
        key = tuple(tensors)
        if key not in self._ranges:
            self._ranges[key] = steady_ranges(self._seen(tensors), FIRST_ROWS)
        return self._ranges[key]

    def moments(self, tensors: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        found: dict[str, np.ndarray[Any, Any]] = {}
        counts: dict[str, int] = {}
        for seen in islice(self._seen(tensors), _MOMENT_ROWS // FIRST_ROWS):
            for name, values in seen.items():
                flat = np.asarray(values, np.float64).reshape(-1, values.shape[-1])
                flat = flat[np.isfinite(flat).all(1)]
                if flat.shape[1] <= _WIDEST:
                    found[name] = found.get(name, 0.0) + flat.T @ flat
                    counts[name] = counts.get(name, 0) + len(flat)
        return {name: one / counts[name] for name, one in found.items() if counts[name]}

    def _seen(self, tensors: Sequence[str]) -> Iterator[Arrays]:
        model, onnx = self.model, library("onnx")
        there = {value.name for value in (*model.graph.output, *model.graph.input)}
        for name in tensors:
            if name not in there:
                model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        session = session_of(model, exact=True)
        wanted = [output.name for output in session.get_outputs() if output.name in set(tensors)]
        for given in self._batches(self._calibrating, FIRST_ROWS):
            inputs = {name: given[name] for name in tensors if name in given}
            yield dict(zip(wanted, session.run(wanted, given), strict=True)) | inputs

    def error_of(self, model: onnx.ModelProto) -> float:
        if self._wanted is None:
            self._wanted = self._outputs(self.model)
        made = self._outputs(model)
        far = [np.abs(came.astype(np.float64) - wanted) for came, wanted in zip(made, self._wanted, strict=True)]
        return float(np.mean([np.nan_to_num(one, nan=np.inf).mean() for one in far]))

    def _outputs(self, model: onnx.ModelProto) -> list[np.ndarray[Any, Any]]:
        """Of numbers with fractions: a class number says little about how near another one was."""
        session = session_of(model)
        wanted = [output.name for output in session.get_outputs() if "float" in output.type]
        wanted = wanted or [output.name for output in session.get_outputs()]
        first = {name: column[:_TUNING_ROWS] for name, column in self._tuning.items()}
        parts = [session.run(wanted, given) for given in self._batches(first, 64)]
        return [np.concatenate(some) for some in zip(*parts, strict=True)]

    def given(self, rows: Batch, places: slice | torch.Tensor) -> dict[str, np.ndarray[Any, Any]]:
        """The model's inputs by the names of its values."""
        return {value: rows[column][places].numpy() for value, column in self._columns.items()}

    def _batches(self, rows: Batch, size: int) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        total = len(next(iter(rows.values())))
        for start in range(0, max(total - size + 1, 1), size):
            yield self.given(rows, slice(start, start + size))

    def named(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """`model` with what the source's file says about its inputs, which tools that rewrite models leave out."""
        del model.metadata_props[:]
        model.metadata_props.extend(self._base.metadata_props)
        return model


def session_of(model: onnx.ModelProto, *, exact: bool = False) -> Any:
    """`exact`: as written, without merging operators, so that inner values can be read."""
    runtime = library("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = _ERRORS
    options.intra_op_num_threads = torch.get_num_threads()
    if exact:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _folded(core: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Constants folded and batch norm merged by onnxruntime, with standard operators only."""
    onnx, runtime = library("onnx"), library("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = _ERRORS
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    runtime.InferenceSession(core.SerializeToString(), options, providers=["CPUExecutionProvider"])
    made: Any = onnx.load(path)
    del made.metadata_props[:]
    made.metadata_props.extend(core.metadata_props)
    del made.graph.value_info[:]
    for place, node in enumerate(made.graph.node):
        node.name = node.name or f"{node.op_type}_{place}"
    onnx.save(made, path)
    return made  # type: ignore[no-any-return]
