"""Wide layers as a product of two narrow ones: fewer multiplications where a layer's outputs vary in few directions.

The factors are those with the least error of the layer's outputs on calibration rows: the singular values of the weight, after
its inputs are turned so that all their directions are equally large. How many are kept is how much of the outputs' energy is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from flatout.base.errors import ModelError
from flatout.packaging.onnx_libraries import library
from flatout.shrinking.changes.change import ChangedModel, Material, ModelChange
from flatout.shrinking.changes.layers import FACTOR, PRODUCTS, layers_of

if TYPE_CHECKING:
    import onnx

_WIDE = 64  # in both directions; the factors of smaller layers take longer than they save
_WORTH = 0.9  # of the multiplications: a layer that keeps more stays whole
_ROUND = 8  # factors: kernels are written for groups of them
_RIDGE = 1e-6  # of the mean square of the inputs, for directions that no calibration row has

Matrix = npt.NDArray[np.float64]


class LowRank(ModelChange):
    """The value says how much of the energy of each layer's outputs is kept at least."""

    name: ClassVar[str] = "low_rank"
    values: ClassVar[tuple[str, ...]] = ("99.9%", "99%")
    comes_first: ClassVar[bool] = True

    def why_not(self, model: onnx.ModelProto, value: str) -> str | None:
        return None if self.layers(model) else f"no matrix product is {_WIDE} wide or more in both directions"

    def layers(self, model: onnx.ModelProto) -> list[str]:
        weights = {tensor.name: tensor for tensor in model.graph.initializer}
        return [node.name for node in layers_of(model, PRODUCTS) if _is_wide(node, weights[node.input[1]])]

    def make(self, material: Material, value: str, floats: Sequence[str]) -> ChangedModel:
        model, share = material.model, float(value.removesuffix("%")) / 100
        names = set(self.layers(model)) - set(floats)
        layers = [node for node in model.graph.node if node.name in names]
        moments = material.moments([node.input[0] for node in layers])
        ranks: dict[str, int] = {}
        before = sum(_numbers(model))
        for node in layers:
            weight = _weight(model, node)
            first, second = factors(weight, moments.get(node.input[0]), share)
            if first.size + second.size <= _WORTH * weight.size:
                _replace(model, node, first, second)
                ranks[node.name] = first.shape[1]
        if not ranks:
            raise ModelError(f"no layer has {value} of its outputs in so few directions that two factors are smaller than it")
        _without_unused(model)
        return ChangedModel(model, {"ranks": ranks, "weights": sum(_numbers(model)) / before})


def factors(weight: Matrix, moment: Matrix | None, share: float) -> tuple[Matrix, Matrix]:
    """Two matrices whose product is nearest to `weight` for inputs with this second moment, by default for all alike."""
    root: Matrix = np.eye(len(weight))
    if moment is not None:
        ridge = _RIDGE * max(float(np.trace(moment)) / len(moment), 1e-30)
        root = np.asarray(np.linalg.cholesky(moment + ridge * np.eye(len(moment))), np.float64)
    left, values, right = np.linalg.svd(root.T @ weight, full_matrices=False)
    energy = np.cumsum(values**2) / max(float((values**2).sum()), 1e-300)
    rank = int(np.searchsorted(energy, share)) + 1
    rank = min(-(-rank // _ROUND) * _ROUND, len(values))
    return np.linalg.solve(root.T, left[:, :rank] * values[:rank]), right[:rank]


def _is_wide(node: onnx.NodeProto, weight: onnx.TensorProto) -> bool:
    plain = all(one.i == 0 for one in node.attribute if one.name == "transA") and all(
        one.f == 1.0 for one in node.attribute if one.name in ("alpha", "beta")
    )
    return plain and len(weight.dims) == 2 and min(weight.dims) >= _WIDE


def _is_turned(node: onnx.NodeProto) -> bool:
    return any(one.name == "transB" and one.i for one in node.attribute)


def _weight(model: onnx.ModelProto, node: onnx.NodeProto) -> Matrix:
    """Inputs down, outputs across."""
    tensor = next(one for one in model.graph.initializer if one.name == node.input[1])
    values: Matrix = library("onnx").numpy_helper.to_array(tensor).astype(np.float64)
    return values.T if _is_turned(node) else values


def _replace(model: onnx.ModelProto, node: onnx.NodeProto, first: Matrix, second: Matrix) -> None:
    onnx: Any = library("onnx")
    names = [f"{node.name}{FACTOR}/weight", f"{node.name}/weight"]
    for name, values in zip(names, (first, second), strict=True):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name))
    between = f"{node.name}{FACTOR}/output"
    narrow = onnx.helper.make_node("MatMul", [node.input[0], names[0]], [between], name=f"{node.name}{FACTOR}")
    place = list(model.graph.node).index(node)
    node.input[0], node.input[1] = between, names[1]
    for one in node.attribute:
        if one.name == "transB":
            one.i = 0
    model.graph.node.insert(place, narrow)


def _without_unused(model: onnx.ModelProto) -> None:
    used = {name for node in model.graph.node for name in node.input}
    kept = [one for one in model.graph.initializer if one.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def _numbers(model: onnx.ModelProto) -> list[int]:
    return [int(np.prod(one.dims)) for one in model.graph.initializer]
