"""What a program's nodes read, and the shapes of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from flatout.packaging.program import Node, Program

Shape = tuple[int, ...]


def shapes_of(program: Program, weights: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> list[Shape]:
    """The shape of each node's value for these rows; () for what is no tensor."""
    module = program.module(weights, torch.device("cpu"))
    seen: list[Shape] = []

    class Seeing(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            made = super().run_node(node)
            shapes[node.name] = tuple(made.shape) if isinstance(made, Tensor) else ()
            return made

    shapes: dict[str, Shape] = {}
    assert isinstance(module, fx.GraphModule)
    with torch.no_grad():
        Seeing(module).run(*(rows[port.name] for port in program.inputs))
    calls = iter([node.name for node in module.graph.nodes if node.op == "call_function"])
    kept = used_nodes(program)
    for number, node in enumerate(program.nodes):
        if node.operator is not None and number in kept:
            seen.append(shapes[next(calls)])
        elif node.weight is not None:
            seen.append(tuple(weights[node.weight].shape))
        else:
            seen.append(() if node.input is None else tuple(rows[program.inputs[node.input].name].shape))
    return seen


def used_nodes(program: Program) -> set[int]:
    wanted, pending = set[int](), list(program.returns)
    while pending:
        number = pending.pop()
        if number not in wanted:
            wanted.add(number)
            pending += reads(program.nodes[number])
    return wanted


def reads(node: Node) -> list[int]:
    found: list[int] = []

    def look(value: Any) -> None:
        if isinstance(value, Mapping):
            if set(value) == {"node"}:
                found.append(value["node"])
            else:
                for one in value.values():
                    look(one)
        elif isinstance(value, list | tuple):
            for one in value:
                look(one)

    look(node.args)
    look(dict(node.kwargs or {}))
    return found


def node_at(args: Sequence[Any], place: int) -> int | None:
    value = args[place] if place < len(args) else None
    return value["node"] if isinstance(value, Mapping) and set(value) == {"node"} else None


def numbers_at(args: Sequence[Any], place: int) -> list[int]:
    value = args[place] if place < len(args) else None
    whole = value if isinstance(value, list | tuple) else [value]
    return [one for one in whole if type(one) is int]
