"""Linear layers in fp8 on a GPU: weights with a scale for each output, inputs with one for each row, measured in each call.

The program of a package is rewritten: each product becomes torch's scaled product of two e4m3 matrices, with sums in higher
precision. Eight bits are stored as bytes, since files of weights have no fp8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from flatout.packaging.program import Node, Program
from flatout.shrinking.training.graph import Shape, node_at, used_nodes

_KIND = "aten.linear.default"
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_STEP, _WIDE = 16, 64  # of the kernel's sizes; smaller layers lose more to rounding than the product saves
_LEAST = 1e-12
_CAPABILITY = (8, 9)


@dataclass(frozen=True)
class ChangedProgram:
    """`notes`: facts for the receipt."""

    program: Program
    weights: dict[str, Tensor]
    notes: dict[str, Any] = field(default_factory=dict)


class Fp8:
    """A change of a package's program, as those of `ModelChange` are of its ONNX file."""

    name: ClassVar[str] = "fp8"
    values: ClassVar[tuple[str, ...]] = ("",)
    is_by_layer: ClassVar[bool] = True
    only_for_size: ClassVar[bool] = False
    comes_first: ClassVar[bool] = False

    def why_not(self, program: Program, weights: Mapping[str, Tensor], device: torch.device) -> str | None:
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < _CAPABILITY:
            return f"{torch.cuda.get_device_name(device)} has no fp8: it takes compute capability 8.9, as of an L4 or an H100"
        if not self.layers(program, weights):
            return f"no linear layer is {_WIDE} wide or more, in multiples of {_STEP}, in both directions"
        return None

    def layers(self, program: Program, weights: Mapping[str, Tensor]) -> list[str]:
        """By the names of their weights."""
        return [
            name for node in program.nodes
            if node.operator == _KIND and (name := _weight(program, node, 1)) is not None and _fits(weights[name])
        ]  # fmt: skip

    def make(
        self, program: Program, weights: Mapping[str, Tensor], precision: str, shapes: Sequence[Shape], floats: Sequence[str]
    ) -> ChangedProgram:
        """`precision`: of the package on a GPU; the results of products have its type. `shapes`: of the nodes' values."""
        wanted = set(self.layers(program, weights)) - set(floats)
        writer = _Writer(dict(weights), precision)
        for node in program.nodes:
            name = _weight(program, node, 1) if node.operator == _KIND else None
            if name in wanted and name is not None:
                writer.in_fp8(node, name, _weight(program, node, 2), len(shapes[node_at(node.args, 0) or 0]))
            else:
                writer.copy(node)
        returns = tuple(writer.places[number] for number in program.returns)
        made = _without_unused(replace(program, nodes=tuple(writer.nodes), returns=returns))
        return ChangedProgram(made, {name: writer.weights[name] for name in made.weight_names}, {"layers": len(wanted)})


class _Writer:
    """The nodes of the new program; `places` has the new number of each old node."""

    def __init__(self, weights: dict[str, Tensor], precision: str) -> None:
        self.weights, self._precision = weights, precision
        self.nodes: list[Node] = []
        self.places: list[int] = []

    def copy(self, node: Node) -> None:
        kwargs = {name: self._moved(value) for name, value in (node.kwargs or {}).items()}
        self._add(replace(node, args=tuple(self._moved(list(node.args))), kwargs=kwargs or None))
        self.places.append(len(self.nodes) - 1)

    def in_fp8(self, node: Node, name: str, bias: str | None, rank: int) -> None:
        weight = self.weights[name].float()
        outputs, inputs = weight.shape
        scale = weight.abs().amax(1, keepdim=True).clamp(min=_LEAST) / _LARGEST
        self.weights[f"{name}/fp8"] = (weight / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)
        self.weights[f"{name}/scale"] = scale.t().contiguous()
        x = self._moved(node.args[0])
        rows = x if rank == 2 else self._call("aten.reshape.default", x, [-1, inputs])
        wide = self._call("aten.to.dtype", rows, {"dtype": "float32"})
        largest = self._call("aten.amax.default", self._call("aten.abs.default", wide), [-1], True)
        step = self._call("aten.div.Tensor", self._call("aten.clamp.default", largest, _LEAST), _LARGEST)
        cut = self._call("aten.clamp.default", self._call("aten.div.Tensor", wide, step), -_LARGEST, _LARGEST)
        narrow = self._call("aten.to.dtype", cut, {"dtype": "float8_e4m3fn"})
        bits = self._call("aten.view.dtype", self._tensor(f"{name}/fp8"), {"dtype": "float8_e4m3fn"})
        turned, scales = self._call("aten.t.default", bits), self._tensor(f"{name}/scale")
        made = self._call("aten._scaled_mm.default", narrow, turned, step, scales, None, None, {"dtype": "bfloat16"}, True)
        if bias is not None:
            self.weights[f"{name}/bias"] = self.weights[bias].to(torch.bfloat16)
            made = self._call("aten.add.Tensor", made, self._tensor(f"{name}/bias"))
        if self._precision == "fp32":
            made = self._call("aten.to.dtype", made, {"dtype": "float32"})
        if rank != 2:
            between = [self._call("aten.sym_size.int", x, dim) for dim in range(1, rank - 1)]
            self._call("aten.reshape.default", made, [-1, *between, outputs])
        self.places.append(len(self.nodes) - 1)

    def _call(self, operator: str, *args: Any) -> dict[str, int]:
        return self._add(Node(operator, tuple(args)))

    def _tensor(self, name: str) -> dict[str, int]:
        return self._add(Node(weight=name))

    def _add(self, node: Node) -> dict[str, int]:
        self.nodes.append(node)
        return {"node": len(self.nodes) - 1}

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self.places[one] if key == "node" else self._moved(one) for key, one in value.items()}
        return [self._moved(one) for one in value] if isinstance(value, list | tuple) else value


def _weight(program: Program, node: Node, place: int) -> str | None:
    number = node_at(node.args, place)
    return None if number is None else program.nodes[number].weight


def _fits(weight: Tensor) -> bool:
    return weight.dim() == 2 and min(weight.shape) >= _WIDE and all(size % _STEP == 0 for size in weight.shape)


def _without_unused(program: Program) -> Program:
    """Inputs stay. Numbers of nodes are their places, so those that follow move up."""
    used = used_nodes(program)
    kept = [number for number, node in enumerate(program.nodes) if number in used or node.input is not None]
    places = {number: place for place, number in enumerate(kept)}

    def moved(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: places[one] if key == "node" else moved(one) for key, one in value.items()}
        return [moved(one) for one in value] if isinstance(value, list | tuple) else value

    nodes = [program.nodes[number] for number in kept]
    made = [
        replace(node, args=tuple(moved(list(node.args))), kwargs=moved(dict(node.kwargs)) if node.kwargs else None)
        for node in nodes
    ]
    return replace(program, nodes=tuple(made), returns=tuple(places[number] for number in program.returns))
