"""Weights stored in 16, 8 or 4 bits and computed with in float32: for size alone.

8 bits have a scale for each channel. 4 bits have one for each 32 numbers in a row, which costs another bit and makes up for
most of the rounding; only matrices have them, and the other weights 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from flatout.packaging.onnx_libraries import library
from flatout.shrinking.changes.change import ChangedModel, Material, ModelChange

if TYPE_CHECKING:
    import onnx

_BLOCK = 32
_INT4_OPSET, _INT4_IR = 21, 10
_LEAST = 1024  # elements; smaller tensors are not worth it
_READERS = {"Conv": 0, "MatMul": 1, "Gemm": 0, "Gather": 0}
"""Operators that read weights, and the axis along which each slice gets a scale."""


class SmallWeights(ModelChange):
    name: ClassVar[str] = "weights"
    values: ClassVar[tuple[str, ...]] = ("int8", "float16", "int4")
    only_for_size: ClassVar[bool] = True

    def why_not(self, model: onnx.ModelProto, value: str) -> str | None:
        return None if _large(model) else f"no weight has {_LEAST:,} elements or more"

    def make(self, material: Material, value: str, floats: Sequence[str]) -> ChangedModel:
        model = material.model
        large, nodes, kept = _large(model), [], []
        for tensor in model.graph.initializer:
            if tensor.name in large:
                made, node = _OF[value](tensor, large[tensor.name])
                kept += made
                nodes.append(node)
            else:
                kept.append(tensor)
        before = list(model.graph.node)
        del model.graph.initializer[:], model.graph.node[:]
        model.graph.initializer.extend(kept)
        model.graph.node.extend([*nodes, *before])
        if value == "int4":
            _allow_int4(model)
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


def _int4(tensor: onnx.TensorProto, axis: int) -> tuple[list[onnx.TensorProto], onnx.NodeProto]:
    if len(tensor.dims) != 2 or tensor.dims[1 - axis] % _BLOCK:
        return _int8(tensor, axis)
    onnx = library("onnx")
    across, values = 1 - axis, onnx.numpy_helper.to_array(tensor)
    blocks = values.reshape(_split(values.shape, across))
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(across + 1, keepdims=True), across + 1)
    scale = np.where(largest == 0, 1.0, largest / -8).astype(np.float32)  # the largest number of a block is exact
    rounded = np.clip(np.rint(blocks / scale), -8, 7).astype(np.int8).reshape(values.shape)
    small, scales = f"{tensor.name}/int4", f"{tensor.name}/scale"
    node = onnx.helper.make_node(
        "DequantizeLinear", [small, scales], [tensor.name], name=f"{tensor.name}/wide", axis=across, block_size=_BLOCK
    )
    packed = onnx.helper.make_tensor(small, onnx.TensorProto.INT4, values.shape, rounded.reshape(-1))
    return [packed, onnx.numpy_helper.from_array(scale.squeeze(across + 1), scales)], node


def _split(shape: tuple[int, ...], across: int) -> tuple[int, ...]:
    return (*shape[:across], shape[across] // _BLOCK, _BLOCK, *shape[across + 1 :])


def _allow_int4(model: onnx.ModelProto) -> None:
    for one in model.opset_import:
        if one.domain in ("", "ai.onnx"):
            one.version = max(one.version, _INT4_OPSET)
    model.ir_version = max(model.ir_version, _INT4_IR)


_OF = {"int8": _int8, "float16": _float16, "int4": _int4}
