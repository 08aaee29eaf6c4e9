"""The layers of an ONNX model: nodes that multiply by constant weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

PRODUCTS = ("MatMul", "Gemm")
CONVOLUTIONS = ("Conv",)
FACTOR = "/factor"  # ends the name of the first of two factors of a layer, whose second one has its name


def layers_of(model: onnx.ModelProto, kinds: tuple[str, ...]) -> list[onnx.NodeProto]:
    """Nodes of these kinds whose second input is a constant of two or more dimensions."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if node.op_type not in kinds or len(node.input) < 2 or not node.name:
            continue
        weight = constants.get(node.input[1])
        if weight is not None and len(weight.dims) >= 2:
            found.append(node)
    return found


def names_of(model: onnx.ModelProto, kinds: tuple[str, ...]) -> list[str]:
    return [node.name for node in layers_of(model, kinds)]


def is_among(name: str, layers: Sequence[str]) -> bool:
    """Both factors of a layer are meant by its name."""
    return name.removesuffix(FACTOR) in layers


def with_product_names(floats: Sequence[str]) -> list[str]:
    """A Gemm becomes a MatMul of another name before it is quantised."""
    return [f"{name}{end}" for name in floats for end in ("", "_MatMul", FACTOR)]
