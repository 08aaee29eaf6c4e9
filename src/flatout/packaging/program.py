"""A program: the graph of operators from the tensors of prepared rows to named outputs, without weights, as JSON.

    program = Program.from_json(parse_json(content))    # checks every name in it; runs nothing
    module = program.module(weights, torch.device("cpu"))
    outputs = module(*tensors)                          # a tuple, in the order of program.outputs

A node is an input, a tensor of the weights file, or a call of one operator with earlier nodes, numbers, text and types.
A device in a call is always the one that the module is built for.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from flatout.base.errors import DamagedFile, ModelError
from flatout.packaging.operators import check_call, operator_called
from flatout.packaging.ports import Port
from flatout.packaging.row_scales import FP8_PRODUCT, check_row_scales

FORMAT = 1
_MEMORY = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last, "preserve": torch.preserve_format}
_NOT_FINITE = ("inf", "-inf", "nan")
_MEMORY_NAMES = {value: name for name, value in _MEMORY.items()}


@dataclass(frozen=True)
class Node:
    """`weight` names a tensor of the weights file; `input` is a place in the inputs; else a call of `operator`."""

    operator: str | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    weight: str | None = None
    input: int | None = None

    def to_json(self) -> dict[str, Any]:
        if self.weight is not None:
            return {"weight": self.weight}
        if self.input is not None:
            return {"input": self.input}
        written: dict[str, Any] = {"call": self.operator, "args": list(self.args)}
        return {**written, "kwargs": dict(self.kwargs)} if self.kwargs else written

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Node:
        """ModelError for an operator that a program may not call."""
        if "weight" in written:
            return cls(weight=str(written["weight"]))
        if "input" in written:
            return cls(input=_number(written["input"]))
        name, args, kwargs = str(written["call"]), tuple(written["args"]), dict(written.get("kwargs", {}))
        check_call(name, len(args), kwargs)
        return cls(name, args, kwargs)


@dataclass(frozen=True)
class Program:
    """`returns` has for each output the number of its node."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nodes: tuple[Node, ...]
    returns: tuple[int, ...]

    @property
    def weight_names(self) -> tuple[str, ...]:
        return tuple(node.weight for node in self.nodes if node.weight is not None)

    def module(self, weights: Mapping[str, Tensor], device: torch.device) -> nn.Module:
        """Takes the inputs by position, on `device`, and returns a tuple of the outputs. MachineError if it can't run there."""
        if any(node.operator == FP8_PRODUCT for node in self.nodes):
            check_row_scales(device)
        root = nn.Module()
        graph = fx.Graph()
        made: list[fx.Node] = [graph.placeholder(f"input_{place}") for place in range(len(self.inputs))]
        places = list(made)
        made = []
        for number, node in enumerate(self.nodes):
            if node.input is not None:
                made.append(places[node.input])
            elif node.weight is not None:
                root.register_buffer(f"weight_{number}", weights[node.weight].to(device))
                made.append(graph.get_attr(f"weight_{number}"))
            else:
                assert node.operator is not None
                read = _Reader(made, device)
                args, kwargs = read.all(node.args), {name: read.one(value) for name, value in (node.kwargs or {}).items()}
                made.append(graph.call_function(operator_called(node.operator), tuple(args), kwargs))
        graph.output(tuple(made[number] for number in self.returns))
        graph.eliminate_dead_code()
        return fx.GraphModule(root, graph).eval()

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "inputs": [port.to_json() for port in self.inputs],
            "outputs": [port.to_json() for port in self.outputs],
            "nodes": [node.to_json() for node in self.nodes],
            "returns": list(self.returns),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Program:
        if written.get("format") != FORMAT:
            raise DamagedFile(f"the program has format {written.get('format')!r}; this flatout reads format {FORMAT}")
        nodes = tuple(Node.from_json(node) for node in written["nodes"])
        inputs, outputs = (tuple(Port.from_json(port) for port in written[key]) for key in ("inputs", "outputs"))
        for place, node in enumerate(nodes):
            if node.input is not None and not 0 <= node.input < len(inputs):
                raise DamagedFile(f"node {place} of the program is input {node.input}; there are {len(inputs)} inputs")
            read = _Reader(range(place), torch.device("cpu"))
            read.all([*node.args, *(node.kwargs or {}).values()])
        returns = tuple(_number(number) for number in written["returns"])
        if len(returns) != len(outputs) or any(not 0 <= number < len(nodes) for number in returns):
            raise DamagedFile(f"the program returns the nodes {list(returns)} of {len(nodes)} as {len(outputs)} outputs")
        return cls(inputs, outputs, nodes, returns)


def _number(written: Any) -> int:
    if type(written) is not int:
        raise DamagedFile(f"the program has {str(written)[:60]!r} where a number of a node or an input is expected")
    return written


class _Reader:
    """The arguments of a call as Python values. `made` are the nodes before it. DamagedFile for anything else."""

    def __init__(self, made: Sequence[Any], device: torch.device) -> None:
        self._made, self._device = made, device

    def all(self, written: Sequence[Any]) -> list[Any]:
        return [self.one(value) for value in written]

    def one(self, written: Any) -> Any:
        if isinstance(written, list):
            return self.all(written)
        if written is None or isinstance(written, bool | int | float | str):
            return written
        if not isinstance(written, Mapping) or len(written) != 1:
            raise DamagedFile(f"the program has an argument of an unknown kind, {str(written)[:60]!r}")
        ((kind, value),) = written.items()
        if kind == "node":
            if not 0 <= _number(value) < len(self._made):
                raise DamagedFile(f"node {len(self._made)} of the program uses node {value}; only earlier nodes can be used")
            return self._made[value]
        if kind == "dtype":
            return dtype_named(value)
        if kind == "device":
            return self._device
        if kind == "layout":
            return torch.strided
        if kind == "memory_format" and isinstance(value, str) and value in _MEMORY:
            return _MEMORY[value]
        if kind == "float" and value in _NOT_FINITE:
            return float(value)
        if kind == "complex" and isinstance(value, list) and len(value) == 2 and all(type(part) is float for part in value):
            return complex(*value)
        if kind == "slice" and isinstance(value, list) and len(value) == 3:
            return slice(*self.all(value))
        raise DamagedFile(f"the program has an argument of an unknown kind, {str(written)[:60]!r}")


def dtype_named(name: str) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise DamagedFile(f"{name!r} is no type of tensors")
    return found


def written_argument(value: Any, node_number: Callable[[fx.Node], int]) -> Any:
    """An argument of a call as JSON. ModelError for one that JSON can't hold."""
    match value:
        case fx.Node():
            return {"node": node_number(value)}
        case list() | tuple():
            return [written_argument(one, node_number) for one in value]
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case None | bool() | int() | float() | str():
            return value
        case complex() if cmath.isfinite(value):
            return {"complex": [value.real, value.imag]}
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": "run"}
        case slice():
            return {"slice": [written_argument(one, node_number) for one in (value.start, value.stop, value.step)]}
        case _ if value is torch.strided:
            return {"layout": "strided"}
        case torch.memory_format() if value in _MEMORY_NAMES:
            return {"memory_format": _MEMORY_NAMES[value]}
    raise ModelError(f"the model passes {type(value).__name__} {value!r} to an operator, which a stored program can't hold")
