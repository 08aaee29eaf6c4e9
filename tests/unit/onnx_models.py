"""Small models for the tests of ONNX files: how a prepared model becomes a graph, and how plain onnxruntime runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from flatout.engine.prepared_model import PreparedModel
from flatout.packaging.onnx_graph import IR_VERSION, OPSET, onnx_model
from flatout.packaging.ports import Port


class FromPreparedRows(nn.Module):
    """The device part without its first `skip` steps, the model and its objective, as a function of tensors."""

    def __init__(self, model: PreparedModel, names: Sequence[str], skip: int = 0) -> None:
        super().__init__()
        self.model, self.names, self.steps = model.bare, names, model.device_part.steps[skip:]
        self.device_part, self.objective = model.device_part, model._objective

    def forward(self, *columns: Tensor) -> tuple[Tensor, ...]:
        rows: Any = dict(zip(self.names, columns, strict=True))
        for step in self.steps:
            rows = step(rows, None)
        return tuple(self.objective.predict(self.model, rows).values())


def exported(model: PreparedModel, rows: Mapping[str, Tensor], skip: int = 0) -> onnx.ModelProto:
    module = FromPreparedRows(model, list(rows), skip).eval()
    with torch.no_grad():
        outputs = module(*rows.values())
    names = {1: ["prediction"], 2: ["prediction", "probability"], 3: ["prediction", "probability", "probabilities"]}
    ports = [port(name, tensor) for name, tensor in zip(names[len(outputs)], outputs, strict=True)]
    return onnx_model(module, [port(name, tensor) for name, tensor in rows.items()], ports, list(rows.values()))


def port(name: str, tensor: Tensor) -> Port:
    return Port(name, str(tensor.dtype).removeprefix("torch."), (None, *tensor.shape[1:]))


def pass_through(inputs: Mapping[str, tuple[int, list[Any]]]) -> onnx.ModelProto:
    """A model that gives its inputs: `NAME` as the output `NAME_out`."""
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    outputs = [helper.make_tensor_value_info(f"{name}_out", kind, shape) for name, (kind, shape) in inputs.items()]
    graph = helper.make_graph(nodes, "model", values, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def pass_table(numeric: int, ids: int) -> onnx.ModelProto:
    shapes = {"numeric": (TensorProto.FLOAT, ["rows", numeric]), "ids": (TensorProto.INT32, ["rows", ids])}
    return pass_through({name: (kind, shape) for name, (kind, shape) in shapes.items() if shape[1]})


def answers(model: onnx.ModelProto, given: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(given)), strict=True))


def metadata(model: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}
