"""The protocol of a change of a package's program, for a GPU; and how a program is written anew with other linear layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from flatout.packaging.program import Node, Program
from flatout.shrinking.training.graph import Shape, node_at, used_nodes

LINEAR = "aten.linear.default"


@dataclass(frozen=True)
class ChangedProgram:
    """`notes`: facts for the receipt."""

    program: Program
    weights: dict[str, Tensor]
    notes: dict[str, Any] = field(default_factory=dict)


class ProgramChange(ABC):
    """As a `ModelChange` is one of an ONNX file. Layers can stay as they are."""

    name: ClassVar[str]
    values: ClassVar[tuple[str, ...]] = ("",)
    is_by_layer: ClassVar[bool] = True
    only_for_size: ClassVar[bool] = False
    comes_first: ClassVar[bool] = False

    @abstractmethod
    def why_not(self, program: Program, weights: Mapping[str, Tensor], device: torch.device) -> str | None:
        """Why it does not apply to this model or machine, in words; None if it does."""

    @abstractmethod
    def fits(self, weight: Tensor) -> bool:
        """Whether a linear layer of this weight can be changed."""

    @abstractmethod
    def write(self, writer: ProgramWriter, node: Node, name: str, bias: str | None, rank: int) -> None:
        """`node` with the weight `name`, whose input has `rank` dimensions, in its new form."""

    def layers(self, program: Program, weights: Mapping[str, Tensor]) -> list[str]:
        """By the names of their weights."""
        return [
            name for node in program.nodes
            if node.operator == LINEAR and (name := _weight(program, node, 1)) is not None and self.fits(weights[name])
        ]  # fmt: skip

    def make(
        self, program: Program, weights: Mapping[str, Tensor], precision: str, shapes: Sequence[Shape], floats: Sequence[str]
    ) -> ChangedProgram:
        """`precision`: of the package on a GPU; the results of products have its type. `shapes`: of the nodes' values."""
        wanted = set(self.layers(program, weights)) - set(floats)
        writer = ProgramWriter(dict(weights), precision)
        for node in program.nodes:
            name = _weight(program, node, 1) if node.operator == LINEAR else None
            if name in wanted and name is not None:
                self.write(writer, node, name, _weight(program, node, 2), len(shapes[node_at(node.args, 0) or 0]))
                writer.end_of_layer()
            else:
                writer.copy(node)
        returns = tuple(writer.places[number] for number in program.returns)
        made = _without_unused(replace(program, nodes=tuple(writer.nodes), returns=returns))
        return ChangedProgram(made, {name: writer.weights[name] for name in made.weight_names}, {"layers": len(wanted)})


class ProgramWriter:
    """The nodes of the new program; `places` has the new number of each old node."""

    def __init__(self, weights: dict[str, Tensor], precision: str) -> None:
        self.weights, self.precision = weights, precision
        self.nodes: list[Node] = []
        self.places: list[int] = []

    def copy(self, node: Node) -> None:
        kwargs = {name: self.moved(value) for name, value in (node.kwargs or {}).items()}
        self._add(replace(node, args=tuple(self.moved(list(node.args))), kwargs=kwargs or None))
        self.end_of_layer()

    def end_of_layer(self) -> None:
        """What was written last is the value of the old node."""
        self.places.append(len(self.nodes) - 1)

    def rows_of(self, x: Any, rank: int, inputs: int) -> Any:
        """A matrix, whatever dimensions the input has."""
        return x if rank == 2 else self.call("aten.reshape.default", x, [-1, inputs])

    def like(self, x: Any, rank: int, made: Any, outputs: int) -> None:
        """The result in the package's type and with the dimensions of the input `x`."""
        if self.precision == "fp32":
            made = self.call("aten.to.dtype", made, {"dtype": "float32"})
        if rank != 2:
            between = [self.call("aten.sym_size.int", x, dim) for dim in range(1, rank - 1)]
            self.call("aten.reshape.default", made, [-1, *between, outputs])

    def call(self, operator: str, *args: Any) -> dict[str, int]:
        return self._add(Node(operator, args))

    def tensor(self, name: str) -> dict[str, int]:
        return self._add(Node(weight=name))

    def _add(self, node: Node) -> dict[str, int]:
        self.nodes.append(node)
        return {"node": len(self.nodes) - 1}

    def moved(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self.places[one] if key == "node" else self.moved(one) for key, one in value.items()}
        return [self.moved(one) for one in value] if isinstance(value, list | tuple) else value


def _weight(program: Program, node: Node, place: int) -> str | None:
    number = node_at(node.args, place)
    return None if number is None else program.nodes[number].weight


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
