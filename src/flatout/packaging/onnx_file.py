"""A program as an ONNX model that takes raw inputs where ONNX can prepare them: columns of a table, pixels of photos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flatout.base.errors import NotExportable
from flatout.data.augment.crops import CenterCrop
from flatout.data.fitted import Fitted
from flatout.data.fitted.photo_rows import PhotoHost
from flatout.data.fitted.table_rows import TableHost
from flatout.packaging.capture import Captured
from flatout.packaging.onnx_front import describe
from flatout.packaging.onnx_graph import onnx_model, onnx_of_exported
from flatout.packaging.onnx_photos import with_raw_photos
from flatout.packaging.onnx_table import with_raw_columns

if TYPE_CHECKING:
    import onnx

_SAMPLE_ROWS = 6


def complete_onnx(captured: Captured, fitted: Fitted, rows: Mapping[str, Tensor]) -> tuple[onnx.ModelProto, str | None]:
    """The model, and a note if it takes prepared tensors because ONNX has no operator for a part of the preparation.

    NotExportable says which operator of the model ONNX lacks.
    """
    model = _from_tensors(captured, rows)
    host = fitted.host
    try:
        if isinstance(host, TableHost):
            return with_raw_columns(model, host), None
    except NotExportable as error:
        _describe_prepared(model, fitted)
        return model, f"model.onnx takes prepared columns, not raw ones: {error}"
    crops = [step for step in fitted.device.steps if isinstance(step, CenterCrop)]
    if isinstance(host, PhotoHost) and crops:
        return with_raw_photos(model, host, crops[-1]), None
    _describe_prepared(model, fitted)
    return model, None


def _from_tensors(captured: Captured, rows: Mapping[str, Tensor]) -> onnx.ModelProto:
    program = captured.program
    if captured.exported is not None:
        return onnx_of_exported(captured.exported, program.inputs, program.outputs)
    samples = [rows[port.name][:_SAMPLE_ROWS] for port in program.inputs]
    return onnx_model(program.module(captured.weights, torch.device("cpu")), program.inputs, program.outputs, samples)


def _describe_prepared(model: Any, fitted: Fitted) -> None:
    """Tokens and arrays: what users give, apart from text, is what the program takes."""
    inputs = [{"column": raw.name, "kind": raw.kind} for raw in fitted.host.inputs]
    rules = ["Inputs are the tensors that flatout's host part makes from raw rows; fitted.json in the package says how."]
    describe(model, rules, inputs, fitted.host.class_names)
