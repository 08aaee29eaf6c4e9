"""Convolutions and matrix products in int8, with ranges that calibration rows have fixed: fast, and the least accurate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flatout.base.errors import ModelError
from flatout.packaging.onnx_libraries import library
from flatout.shrinking.changes.change import ChangedModel, Material, ModelChange
from flatout.shrinking.changes.layers import CONVOLUTIONS, PRODUCTS, is_among, layers_of, names_of
from flatout.shrinking.changes.quiet import without_advice
from flatout.shrinking.changes.ranges import METHODS

if TYPE_CHECKING:
    import onnx

_BETWEEN = ("Relu", "MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze")
"""Operators that pass int8 values on, if they get some."""


class Int8Static(ModelChange):
    """Each weight has a scale for each channel. The cut of the ranges is the one with the smallest error on tuning rows."""

    name: ClassVar[str] = "int8_static"
    is_by_layer: ClassVar[bool] = True

    def why_not(self, model: onnx.ModelProto, value: str) -> str | None:
        return None if self.layers(model) else "the model has no convolution or matrix product with constant weights"

    def layers(self, model: onnx.ModelProto) -> list[str]:
        return names_of(model, (*CONVOLUTIONS, *PRODUCTS))

    def make(self, material: Material, value: str, floats: Sequence[str]) -> ChangedModel:
        model = material.model
        every = layers_of(model, (*CONVOLUTIONS, *PRODUCTS))
        between = [node for node in model.graph.node if node.op_type in _BETWEEN and node.name]
        ranges = material.ranges(_float_values(model, [*every, *between]))
        layers = [node for node in every if not is_among(node.name, floats)]
        empty = set(ranges.empty)
        blind = [node.name for node in layers if empty.intersection((node.input[0], node.output[0]))]
        quantised = [node.name for node in (*layers, *between) if not empty.intersection((*node.input[:1], *node.output))]
        if len(blind) == len(layers):
            raise ModelError("no layer saw a finite value on the calibration rows")
        tried: dict[str, tuple[float, Any]] = {}
        for method in METHODS:
            made = _quantised(material.model, ranges.of(method), quantised)
            tried[method] = (material.error_of(made), made)
        method = min(tried, key=lambda one: tried[one][0])
        notes = {"calibration": method, "rows": ranges.rows, "steady": ranges.is_steady,
                 "errors": {one: error for one, (error, _) in tried.items()}}  # fmt: skip
        if ranges.odd_values:
            notes["values_not_finite"] = ranges.odd_values
        if blind:
            notes["without_values"] = blind
        return ChangedModel(tried[method][1], notes)


def _float_values(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """What these nodes read and write, without constants and whole numbers."""
    onnx = library("onnx")
    known = onnx.shape_inference.infer_shapes(model).graph
    values = [*known.value_info, *known.input, *known.output]
    floats = {value.name for value in values if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    wanted = {name for node in nodes for name in (*node.input[:1], *node.output)}
    return sorted(wanted & floats)


def _quantised(model: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]], nodes: Sequence[str]) -> onnx.ModelProto:
    calibrate = library("onnxruntime.quantization.calibrate")
    quantizer = library("onnxruntime.quantization.qdq_quantizer")
    utils = library("onnxruntime.quantization.quant_utils")
    limits = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.items()}
    made = quantizer.QDQQuantizer(
        utils.save_and_reload_model_with_shape_infer(model),
        True,  # per channel
        False,
        utils.QuantType.QInt8,
        utils.QuantType.QUInt8,
        calibrate.TensorsData(calibrate.CalibrationMethod.MinMax, limits),
        list(nodes),
        [],
        [*CONVOLUTIONS, *PRODUCTS, *_BETWEEN],
        {"MatMulConstBOnly": True},
    )
    with without_advice():
        made.quantize_model()
        made.model.topological_sort()
    result: onnx.ModelProto = made.model.model
    del result.graph.value_info[:]
    return result
