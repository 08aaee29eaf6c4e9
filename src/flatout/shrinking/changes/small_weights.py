"""Weights stored as int8 or float16 and computed with in float32: for size alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from flatout.packaging.onnx_libraries import library
from flatout.shrinking.changes.change import ChangedModel, Material, ModelChange

if TYPE_CHECKING:
    import onnx

_LEAST = 1024  # elements; smaller tensors are not worth it
_READERS = {"Conv": 0, "MatMul": 1, "Gemm": 0, "Gather": 0}
"""Operators that read weights, and the axis along which each slice gets a scale."""


class SmallWeights(ModelChange):
    name: ClassVar[str] = "weights"
    values: ClassVar[tuple[str, ...]] = ("int8", "float16")
    only_for_size: ClassVar[bool] = True

    def why_not(self, model: onnx.ModelProto, value: str) -> str | None:
        return None if _large(model) else f"no weight has {_LEAST:,} elements or more"

    def make(self, material: Material, value: str, floats: Sequence[str]) -> ChangedModel:
        model = material.model
        large, nodes, kept = _large(model), [], []
        for tensor in model.graph.initializer:
            if tensor.name in large:
                made, node = (_int8 if value == "int8" else _float16)(tensor, large[tensor.name])
                kept += made
                nodes.append(node)
            else:
                kept.append(tensor)
        before = list(model.graph.node)
        del model.graph.initializer[:], model.graph.node[:]
        model.graph.initializer.extend(kept)
        model.graph.node.extend([*nodes, *before])
        return ChangedModel(model)


def _large(model: onnx.ModelProto) -> dict[str, int]:
    """Names of large float weights, with the axis of their scales."""
    onnx = library("onnx")
    floats = {
        one.name: one for one in model.graph.initializer
        if one.data_type == onnx.TensorProto.FLOAT and np.prod(one.dims) >= _LEAST and len(one.dims) >= 2
    }  # fmt: skip
    found: dict[str, int] = {}
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in floats and node.op_type in _READERS and place == (0 if node.op_type == "Gather" else 1):
                turned = node.op_type == "Gemm" and not any(one.name == "transB" and one.i for one in node.attribute)
                last = len(floats[name].dims) - 1
                found[name] = last if node.op_type == "MatMul" or turned else _READERS[node.op_type]
    return found


def _int8(tensor: onnx.TensorProto, axis: int) -> tuple[list[onnx.TensorProto], onnx.NodeProto]:
    onnx = library("onnx")
    values = onnx.numpy_helper.to_array(tensor)
    others = tuple(one for one in range(values.ndim) if one != axis)
    scale = np.maximum(np.abs(values).max(axis=others), 1e-12).astype(np.float32) / 127
    shape = [-1 if one == axis else 1 for one in range(values.ndim)]
    rounded = np.clip(np.rint(values / scale.reshape(shape)), -127, 127).astype(np.int8)
    small, scales = f"{tensor.name}/int8", f"{tensor.name}/scale"
    node = onnx.helper.make_node("DequantizeLinear", [small, scales], [tensor.name], name=f"{tensor.name}/wide", axis=axis)
    return [onnx.numpy_helper.from_array(rounded, small), onnx.numpy_helper.from_array(scale, scales)], node


def _float16(tensor: onnx.TensorProto, axis: int) -> tuple[list[onnx.TensorProto], onnx.NodeProto]:
    onnx = library("onnx")
    small = f"{tensor.name}/float16"
    node = onnx.helper.make_node("Cast", [small], [tensor.name], name=f"{tensor.name}/wide", to=onnx.TensorProto.FLOAT)
    return [onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), small)], node
