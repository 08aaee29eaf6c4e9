"""Weights outside of an ONNX file: it refers to the tensors of a safetensors file next to it, so they are stored once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flatout.packaging.onnx_libraries import library

if TYPE_CHECKING:
    import onnx

SMALLEST_BYTES = 1024  # smaller tensors stay inside: tools read shapes from them
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_TYPES = {
    "F64": "DOUBLE", "F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16", "I64": "INT64", "I32": "INT32",
    "I16": "INT16", "I8": "INT8", "U8": "UINT8", "BOOL": "BOOL",
}  # fmt: skip
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _Stored(NamedTuple):
    """A tensor in the weights file. `offset` counts from the start of the file."""

    shape: tuple[int, ...]
    offset: int
    content: Bytes


def outside(model: onnx.ModelProto, weights: Path) -> onnx.ModelProto:
    """A new model whose large tensors are read from `weights` if that file has them, also transposed; others stay inside.

    onnxruntime finds the file next to the ONNX file, by its name.
    """
    onnx = library("onnx")
    stored = _stored(weights)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    turned = []
    for tensor in made.graph.initializer:
        if len(tensor.raw_data) < SMALLEST_BYTES:
            continue
        candidates = stored.get((tensor.data_type, len(tensor.raw_data)), [])
        content = np.frombuffer(tensor.raw_data, np.uint8)
        if (found := _equal(content, candidates)) is not None:
            _refer(tensor, weights.name, found)
        elif (found := _equal_turned(tensor, content, candidates)) is not None:
            node = onnx.helper.make_node("Transpose", [f"{tensor.name}/stored"], [tensor.name], perm=[1, 0])
            turned.append(node)
            tensor.name = node.input[0]
            tensor.dims[:] = found.shape
            _refer(tensor, weights.name, found)
    nodes = [*turned, *made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)  # onnxruntime transposes once, when it loads the file
    return made  # type: ignore[no-any-return]


def _stored(path: Path) -> dict[tuple[int, int], list[_Stored]]:
    """Tensors by their ONNX type and number of bytes."""
    types = library("onnx").TensorProto
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    content: Bytes = np.memmap(path, np.uint8, "r")
    found: dict[tuple[int, int], list[_Stored]] = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _TYPES:
            continue
        start, end = (8 + header_bytes + place for place in entry["data_offsets"])
        shape = tuple(entry["shape"])
        assert end - start == math.prod(shape) * _ITEM_BYTES[entry["dtype"]], f"{path.name}: {name}"
        key = getattr(types, _TYPES[entry["dtype"]]), end - start
        found.setdefault(key, []).append(_Stored(shape, start, content[start:end]))
    return found


def _equal(content: Bytes, candidates: list[_Stored]) -> _Stored | None:
    return next((one for one in candidates if np.array_equal(one.content, content)), None)


def _equal_turned(tensor: onnx.TensorProto, content: Bytes, candidates: list[_Stored]) -> _Stored | None:
    if len(tensor.dims) != 2:
        return None
    high, wide = tensor.dims
    back = np.ascontiguousarray(content.reshape(high, wide, -1).swapaxes(0, 1)).reshape(-1)
    return _equal(back, [one for one in candidates if one.shape == (wide, high)])


def _refer(tensor: onnx.TensorProto, file: str, found: _Stored) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = library("onnx").TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", file), ("offset", found.offset), ("length", len(found.content))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
