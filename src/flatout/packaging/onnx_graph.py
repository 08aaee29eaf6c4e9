"""A module of ATen operators as an ONNX model, from the tensors of prepared rows to named outputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flatout.base.errors import NotExportable
from flatout.packaging.onnx_libraries import library, quiet
from flatout.packaging.ports import Port

if TYPE_CHECKING:
    import onnx

OPSET = 20
IR_VERSION = 10  # the one that belongs to OPSET; older versions of onnxruntime refuse newer ones
ROWS = "rows"
MOST_BYTES = (1 << 31) - 1  # of one protobuf message

_OPERATOR = re.compile(r"op='([\w.:]+)'")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def onnx_model(
    module: nn.Module, inputs: Sequence[Port], outputs: Sequence[Port], samples: Sequence[Tensor]
) -> onnx.ModelProto:
    """`module` takes `samples` by position and returns a tuple. Sizes that a port leaves open are of any size in the model.

    A sample has more than one row, and more than one element along each open dimension: torch treats sizes 0 and 1 as fixed.
    """
    several = [torch.cat([sample, sample]) if sample.shape[0] == 1 else sample for sample in samples]
    open_sizes = [
        {axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(port.shape) if size is None or axis == 0} for port in inputs
    ]
    try:
        with quiet(), torch.no_grad():
            exported = torch.export.export(
                module, tuple(several), dynamic_shapes=_by_position(module, open_sizes), strict=False
            )
    except Exception as error:
        raise NotExportable(f"the model can't be exported to ONNX: {_reason(error)}") from error
    return onnx_of_exported(exported, inputs, outputs)


def onnx_of_exported(
    exported: torch.export.ExportedProgram, inputs: Sequence[Port], outputs: Sequence[Port]
) -> onnx.ModelProto:
    """The graph of torch.export as an ONNX model; it takes the inputs and gives the outputs in this order."""
    library("onnx")
    library("onnxscript")
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                exported,
                input_names=[port.name for port in inputs],
                output_names=[port.name for port in outputs],
                opset_version=OPSET,
                external_data=False,
                verbose=False,
                dynamo=True,
            )
            assert program is not None
            model: onnx.ModelProto = program.model_proto
    except Exception as error:
        raise NotExportable(f"the model can't be exported to ONNX: {_reason(error)}") from error
    _tidy(model)
    _name_sizes(model, inputs, outputs)
    return checked(model)


def checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model. NotExportable if it is no valid ONNX, or too large for one file."""
    onnx = library("onnx")
    size = model.ByteSize()
    if size > MOST_BYTES:
        raise NotExportable(f"the model has {size:,} bytes and an ONNX file holds {MOST_BYTES:,} at most")
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise NotExportable(f"the exported model is no valid ONNX: {str(error).splitlines()[0]}") from error
    return model


def _by_position(module: nn.Module, open_sizes: list[dict[int, Any]]) -> Any:
    """One entry for each parameter of forward; a `*args` is one parameter."""
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    return (tuple(open_sizes),) if kinds[:1] == [inspect.Parameter.VAR_POSITIONAL] else tuple(open_sizes)


def _tidy(model: onnx.ModelProto) -> None:
    """Without shapes of inner values, which tools that change weights find contradictory, and without the exporter's notes:
    they hold the source code and paths of the machine that exported."""
    model.ir_version = IR_VERSION
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    del model.graph.value_info[:]
    model.graph.name, model.producer_name = "model", "flatout"
    model.producer_version = ""
    for part in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del part.metadata_props[:]
    for node in _nodes(model.graph):
        del node.metadata_props[:]
        node.doc_string = ""


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Also those of inner graphs."""
    found = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                del attribute.g.value_info[:]
                found += _nodes(attribute.g)
    return found


def _name_sizes(model: onnx.ModelProto, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    """The open sizes of inputs get plain names, and outputs the same ones."""
    names: dict[str, str] = {}
    for value, port in zip(model.graph.input, inputs, strict=True):
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if axis == 0 and not size.dim_param:
                raise NotExportable(f"the model can't be exported to ONNX: it fixes the number of rows to {size.dim_value}")
            if size.dim_param:
                names[size.dim_param] = size.dim_param = ROWS if axis == 0 else names.get(size.dim_param, f"{port.name}_{axis}")
    for value, port in zip(model.graph.output, outputs, strict=True):
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if size.dim_param:
                size.dim_param = names.get(size.dim_param, ROWS if axis == 0 else f"{port.name}_{axis}")


def _reason(error: BaseException) -> str:
    """In one line: the operator that ONNX lacks, or the first line of the error that began it."""
    while error.__cause__ is not None:
        if found := _OPERATOR.search(str(error)):
            break
        error = error.__cause__
    text = _COLOUR.sub("", str(error)).strip()
    if found := _OPERATOR.search(text):
        return f"it has no operator for {found[1].replace('::', '.')}"
    return text.splitlines()[0] if text else type(error).__name__
