"""Which widths of a model can be cut: channels of a convolution or units of a linear layer, with all that depends on them.

The graph is the package's own program. Each channel is followed from the layer that makes it, through norms, activations,
pooling and a flatten, to the layers that read it: a cut takes the same places out of all of their weights. A width that ends
anywhere else, such as in a sum with another one, is refused with the reason. A channel that no reader uses can be cut without
a difference, except below a LayerNorm, whose mean it is part of: fine-tuning makes up for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from flatout.packaging.program import Node, Program

MODEL = "model."  # what names of the run's weights begin with in a package
_KINDS = (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)
_ONE_BY_ONE = {
    "relu", "relu_", "relu6", "gelu", "silu", "silu_", "sigmoid", "tanh", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_",
    "elu", "hardswish", "hardswish_", "softplus", "mish", "clone", "contiguous", "detach", "alias", "to", "_to_copy", "dropout",
}  # fmt: skip
_POOLS = {"max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"}
_SUMS = {"add", "add_", "sub", "sub_"}
_SCALES = {"mul", "mul_", "div", "div_"}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """A place that depends on a width: dimension `dim` of a weight has `block` numbers in a row for each channel."""

    weight: str
    dim: int
    block: int = 1


@dataclass
class Width:
    """`makers`: weights whose places along dimension 0 are its channels, the layer's own first. `readers`: of the layers that
    read them."""

    layer: str
    size: int
    makers: list[Cut] = field(default_factory=list)
    readers: list[Cut] = field(default_factory=list)
    why_not: str = ""


@dataclass(frozen=True)
class _Channels:
    """A value of the program whose dimension `dim` has the channels of a width, `block` numbers each."""

    width: Width
    dim: int
    block: int = 1


def widths_of(program: Program, model: nn.Module, weights: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> list[Width]:
    """Of every convolution and linear layer of `model`, in order; those with `why_not` can't be cut."""
    return _Following(program, model, shapes_of(program, weights, rows)).done()


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
    kept = _used(program)
    for number, node in enumerate(program.nodes):
        if node.operator is not None and number in kept:
            seen.append(shapes[next(calls)])
        elif node.weight is not None:
            seen.append(tuple(weights[node.weight].shape))
        else:
            seen.append(() if node.input is None else tuple(rows[program.inputs[node.input].name].shape))
    return seen


def _used(program: Program) -> set[int]:
    wanted, pending = set[int](), list(program.returns)
    while pending:
        number = pending.pop()
        if number not in wanted:
            wanted.add(number)
            pending += _reads(program.nodes[number])
    return wanted


def _reads(node: Node) -> list[int]:
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


class _Following:
    def __init__(self, program: Program, model: nn.Module, shapes: Sequence[Shape]) -> None:
        self._program, self._shapes, self._modules = program, shapes, dict(model.named_modules())
        self._used = _used(program)
        self._carried: dict[int, _Channels] = {}
        self._widths: list[Width] = []
        self._times = Counter(number for place in self._used for number in _reads(program.nodes[place]))

    def done(self) -> list[Width]:
        for number, node in enumerate(self._program.nodes):
            if node.operator is not None and number in self._used:
                self._follow(number, node, node.operator.removeprefix("aten.").partition(".")[0])
        for number in self._program.returns:
            self._refuse(number, "it is an output of the model")
        for width in self._widths:
            if not width.why_not and not width.readers:
                width.why_not = "no layer reads it"
        return self._widths

    def _follow(self, number: int, node: Node, name: str) -> None:
        if name in ("conv2d", "linear"):
            self._layer(number, node, name)
        elif name in ("batch_norm", "_native_batch_norm_legit_no_training"):
            self._norm(number, node, [1, 2, 3, 4], dim=1)
        elif name in ("layer_norm", "native_layer_norm") and len(_list(node.args, 1)) == 1:
            self._norm(number, node, [2, 3], dim=-1)
        elif name in _ONE_BY_ONE or name in _POOLS:
            self._pass_on(number, node, same_dims=name in _ONE_BY_ONE)
        elif node.operator == "operator.getitem" and node.args[1] == 0:
            self._pass_on(number, node, same_dims=True)  # the values of an operator that gives more than them
        elif name in _SUMS | _SCALES:
            self._both(number, node, name)
        elif name == "mean":
            self._mean(number, node)
        elif name in ("flatten", "view", "reshape", "_unsafe_view"):
            self._flatten(number, node)
        else:
            self._refuse_all(node, f"its channels go through {name}")

    def _layer(self, number: int, node: Node, name: str) -> None:
        read, weight = self._of(node, 0), self._weight(node, 1)
        if weight is None:
            return self._refuse_all(node, f"the weight of a {name} that reads it is computed, or used more than once")
        layer, shape = weight.removeprefix(MODEL).rpartition(".")[0], self._shapes[_node(node.args, 1) or 0]
        bias = _node(node.args, 2)
        bias_name = None if bias is None else self._weight(node, 2)
        groups = int(node.args[6]) if name == "conv2d" and len(node.args) > 6 else 1
        last = len(self._shapes[number]) - 1
        if groups > 1:
            if read is not None and groups == shape[0] == read.width.size and (bias is None or bias_name is not None):
                read.width.makers += [Cut(one, 0) for one in (weight, bias_name) if one is not None]
                self._carried[number] = read
                return None
            self._refuse_all(node, "a convolution in groups reads it")
        elif read is not None:
            if (read.dim == 1 and name == "conv2d") or (read.dim == len(self._shapes[_node(node.args, 0) or 0]) - 1):
                read.width.readers.append(Cut(weight, 1, read.block))
            else:
                read.width.why_not = read.width.why_not or f"{layer} does not read it along its channels"
        width = Width(layer, shape[0], [Cut(one, 0) for one in (weight, bias_name) if one is not None])
        if bias is not None and bias_name is None:
            width.why_not = "its bias is computed, or used more than once"
        if groups > 1:
            width.why_not = "it is a convolution in groups"
        self._widths.append(width)
        self._carried[number] = _Channels(width, 1 if name == "conv2d" else last)
        return None

    def _norm(self, number: int, node: Node, places: Sequence[int], dim: int) -> None:
        read = self._of(node, 0)
        if read is None:
            return
        shape = self._shapes[_node(node.args, 0) or 0]
        names = [(place, self._weight(node, place)) for place in places if _node(node.args, place) is not None]
        if read.block != 1 or read.dim != dim % len(shape) or any(name is None for _, name in names):
            return self._refuse_all(node, "a norm reads it that is not its own")
        read.width.makers += [Cut(name, 0) for _, name in names if name is not None]
        self._carried[number] = read

    def _pass_on(self, number: int, node: Node, *, same_dims: bool) -> None:
        read = self._of(node, 0)
        if read is None:
            return
        if not same_dims and (read.dim != 1 or len(self._shapes[number]) != 4):
            return self._refuse_all(node, "it is pooled along its channels")
        self._carried[number] = read

    def _both(self, number: int, node: Node, name: str) -> None:
        read, numbers = self._carriers(node), _reads(node)
        if not read:
            return
        if len(read) == len(numbers) and all(one == read[0] for one in read):
            self._carried[number] = read[0]  # with a number, or with itself, as in x * sigmoid(x)
            return
        what = "added to another value: a residual connection" if name in _SUMS else "multiplied with another value"
        self._refuse_all(node, f"it is {what}")

    def _mean(self, number: int, node: Node) -> None:
        read = self._of(node, 0)
        if read is None:
            return
        rank = len(self._shapes[_node(node.args, 0) or 0])
        dims = {one % rank for one in _list(node.args, 1)}
        if read.dim != 1 or not dims or min(dims) <= 1:
            return self._refuse_all(node, "a mean is taken over it")
        self._carried[number] = read

    def _flatten(self, number: int, node: Node) -> None:
        read = self._of(node, 0)
        if read is None:
            return
        before, after = self._shapes[_node(node.args, 0) or 0], self._shapes[number]
        if before == after:
            self._carried[number] = read
        elif read.dim == 1 and len(after) == 2 and after == (before[0], prod(before[1:])):
            self._carried[number] = _Channels(read.width, 1, read.block * prod(before[2:]))
        else:
            self._refuse_all(node, "it is reshaped into other dimensions")

    # ---- what a node reads ----

    def _of(self, node: Node, place: int) -> _Channels | None:
        number = _node(node.args, place)
        return None if number is None else self._carried.get(number)

    def _carriers(self, node: Node) -> list[_Channels]:
        return [self._carried[number] for number in _reads(node) if number in self._carried]

    def _weight(self, node: Node, place: int) -> str | None:
        """Of a layer of a known kind, used once; else None."""
        number = _node(node.args, place)
        name = None if number is None else self._program.nodes[number].weight
        if number is None or name is None or not name.startswith(MODEL) or self._times[number] != 1:
            return None
        owner = self._modules.get(name.removeprefix(MODEL).rpartition(".")[0])
        return name if type(owner) in _KINDS else None

    def _refuse_all(self, node: Node, why: str) -> None:
        for number in _reads(node):
            self._refuse(number, why)

    def _refuse(self, number: int, why: str) -> None:
        read = self._carried.get(number)
        if read is not None and not read.width.why_not:
            read.width.why_not = why


def _node(args: Sequence[Any], place: int) -> int | None:
    value = args[place] if place < len(args) else None
    return value["node"] if isinstance(value, Mapping) and set(value) == {"node"} else None


def _list(args: Sequence[Any], place: int) -> list[int]:
    value = args[place] if place < len(args) else None
    whole = value if isinstance(value, list | tuple) else [value]
    return [one for one in whole if type(one) is int]
