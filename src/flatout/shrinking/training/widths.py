"""Which widths of a model can be cut: channels of a convolution or units of a linear layer, with all that depends on them.

The graph is the package's own program. Each channel is followed from the layer that makes it, through norms, activations,
pooling and a flatten, to the layers that read it: a cut takes the same places out of all of their weights. Where two widths are
added or multiplied, as in residual connections and gates, they are cut together. A width that ends elsewhere is refused, with
the reason. A channel that no reader uses can be cut without a difference, except below a LayerNorm, whose mean it is part of:
fine-tuning makes up for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from torch import Tensor, nn

from flatout.models.head import OutputHead
from flatout.packaging.program import Node, Program
from flatout.shrinking.training.attention import heads_of
from flatout.shrinking.training.cuts import MODEL, Cut, Width
from flatout.shrinking.training.graph import Shape, node_at, numbers_at, reads, shapes_of, used_nodes

_KINDS = (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.Embedding, OutputHead)
_ONE_BY_ONE = {
    "relu", "relu_", "relu6", "gelu", "silu", "silu_", "sigmoid", "tanh", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_",
    "elu", "hardswish", "hardswish_", "softplus", "mish", "pow", "clone", "contiguous", "detach", "alias", "to", "_to_copy",
    "dropout",
}  # fmt: skip
_POOLS = {"max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"}
_SUMS = {"add", "add_", "sub", "sub_"}
_SCALES = {"mul", "mul_", "div", "div_"}


@dataclass(frozen=True)
class _Channels:
    """A value of the program whose dimension `dim` has the channels of a width, `block` numbers each."""

    width: Width
    dim: int
    block: int = 1


def widths_of(program: Program, model: nn.Module, weights: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> list[Width]:
    """Of every convolution and linear layer of `model`, in order; those with `why_not` can't be cut."""
    return _Following(program, model, shapes_of(program, weights, rows)).done()


class _Following:
    def __init__(self, program: Program, model: nn.Module, shapes: Sequence[Shape]) -> None:
        self._program, self._shapes, self._modules = program, shapes, dict(model.named_modules())
        self._used = used_nodes(program)
        self._carried: dict[int, _Channels] = {}
        self._widths: list[Width] = []
        self._times = Counter(number for place in self._used for number in reads(program.nodes[place]))

    def done(self) -> list[Width]:
        for number, node in enumerate(self._program.nodes):
            if node.operator is not None and number in self._used:
                self._follow(number, node, node.operator.removeprefix("aten.").partition(".")[0])
        for number in self._program.returns:
            self._refuse(number, "it is an output of the model")
        for width in self._widths:
            self._check_tied(width)
        heads = heads_of(self._program, self._shapes, self._weight)
        inside = {one.weight for width in heads for one in width.makers}
        self._widths = [*(one for one in self._widths if one.makers[0].weight not in inside), *heads]
        for width in self._widths:
            if not width.why_not and not width.readers:
                width.why_not = "no layer reads it"
        return self._widths

    def _follow(self, number: int, node: Node, name: str) -> None:
        if name in ("conv2d", "linear"):
            self._layer(number, node, name)
        elif name in ("batch_norm", "_native_batch_norm_legit_no_training"):
            self._norm(number, node, [1, 2, 3, 4], dim=1)
        elif name in ("layer_norm", "native_layer_norm") and len(numbers_at(node.args, 1)) == 1:
            self._norm(number, node, [2, 3], dim=-1)
        elif name == "embedding" or (name == "slice" and self._looked_up(node) is not None):
            self._embedding(number, node)
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
        layer, shape = weight.removeprefix(MODEL).rpartition(".")[0], self._shapes[node_at(node.args, 1) or 0]
        bias = node_at(node.args, 2)
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
            if (read.dim == 1 and name == "conv2d") or (read.dim == len(self._shapes[node_at(node.args, 0) or 0]) - 1):
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
        shape = self._shapes[node_at(node.args, 0) or 0]
        names = [(place, self._weight(node, place)) for place in places if node_at(node.args, place) is not None]
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
        """Of two values, or of one and a number."""
        read, numbers = self._carriers(node), reads(node)
        if not read:
            return
        if len(read) == len(numbers) and self._are_alike(node):
            first = read[0]
            for other in read[1:]:
                self._join(first.width, other.width)
            rank, whole = len(self._shapes[numbers[0]]), len(self._shapes[number])
            self._carried[number] = replace(self._carried[numbers[0]], dim=first.dim - rank + whole)
            return
        what = "added to" if name in _SUMS else "multiplied with"
        self._refuse_all(node, f"it is {what} a value that no layer of the same width makes")

    def _are_alike(self, node: Node) -> bool:
        """The same number of channels along the same dimension, counted from the last, as shapes are broadcast."""
        numbers = reads(node)
        kinds = {
            (one.width.size, one.block, one.dim - len(self._shapes[number]))
            for number, one in ((number, self._carried[number]) for number in numbers)
        }
        return len(kinds) == 1

    def _join(self, width: Width, other: Width) -> None:
        if width is other:
            return
        width.join(other)
        self._widths = [one for one in self._widths if one is not other]
        self._carried = {
            number: replace(one, width=width) if one.width is other else one for number, one in self._carried.items()
        }

    def _embedding(self, number: int, node: Node) -> None:
        """Rows of a table, by number or the first ones."""
        weight = self._weight(node, 0)
        if weight is None:
            return self._refuse_all(node, "its table is computed, or used more than once")
        name = f"the table {weight.removeprefix(MODEL).rpartition('.')[0]}"  # the last layer may have the same weight
        width = Width(name, self._shapes[number][-1], [Cut(weight, 1)])
        self._widths.append(width)
        self._carried[number] = _Channels(width, len(self._shapes[number]) - 1)
        return None

    def _looked_up(self, node: Node) -> str | None:
        """The table whose rows, and not whose columns, a slice takes."""
        weight = self._weight(node, 0)
        if weight is None or node.args[1:2] not in ((0,), ()):
            return None
        return weight if isinstance(self._modules.get(weight.removeprefix(MODEL).rpartition(".")[0]), nn.Embedding) else None

    def _check_tied(self, width: Width) -> None:
        """A table that is the weight of the last layer too: its rows are outputs there, and its columns the same width."""
        for one in width.makers:
            if one.dim == 0 and any(
                one.weight == other.weight and other.dim == 1 for each in self._widths for other in each.makers
            ):
                width.why_not = width.why_not or "its weight is also a table of embeddings"
        tables = {one.weight for one in width.makers if one.dim == 1}
        for each in self._widths:
            if each is not width and tables & {one.weight for one in each.readers if one.dim == 1}:
                width.why_not = width.why_not or "its table is also the weight of a layer that reads another width"

    def _mean(self, number: int, node: Node) -> None:
        read = self._of(node, 0)
        if read is None:
            return
        rank = len(self._shapes[node_at(node.args, 0) or 0])
        dims = {one % rank for one in numbers_at(node.args, 1)}
        if read.dim != 1 or not dims or min(dims) <= 1:
            return self._refuse_all(node, "a mean is taken over it")
        self._carried[number] = read

    def _flatten(self, number: int, node: Node) -> None:
        read = self._of(node, 0)
        if read is None:
            return
        before, after = self._shapes[node_at(node.args, 0) or 0], self._shapes[number]
        if before == after:
            self._carried[number] = read
        elif read.dim == 1 and len(after) == 2 and after == (before[0], prod(before[1:])):
            self._carried[number] = _Channels(read.width, 1, read.block * prod(before[2:]))
        else:
            self._refuse_all(node, "it is reshaped into other dimensions")

    # ---- what a node reads ----

    def _of(self, node: Node, place: int) -> _Channels | None:
        number = node_at(node.args, place)
        return None if number is None else self._carried.get(number)

    def _carriers(self, node: Node) -> list[_Channels]:
        return [self._carried[number] for number in reads(node) if number in self._carried]

    def _weight(self, node: Node, place: int) -> str | None:
        """Of a layer of a known kind, used once, or as a table and as the weight of a layer; else None."""
        number = node_at(node.args, place)
        name = None if number is None else self._program.nodes[number].weight
        if number is None or name is None or not name.startswith(MODEL):
            return None
        if self._times[number] != 1 and not self._is_tied(number):
            return None
        owner = self._modules.get(name.removeprefix(MODEL).rpartition(".")[0])
        return name if type(owner) in _KINDS else None

    def _is_tied(self, number: int) -> bool:
        readers = [self._program.nodes[place] for place in self._used if number in reads(self._program.nodes[place])]
        kinds = sorted(str(node.operator).partition(".default")[0] for node in readers)
        return kinds == ["aten.embedding", "aten.linear"] and self._times[number] == 2

    def _refuse_all(self, node: Node, why: str) -> None:
        for number in reads(node):
            self._refuse(number, why)

    def _refuse(self, number: int, why: str) -> None:
        read = self._carried.get(number)
        if read is not None and not read.width.why_not:
            read.width.why_not = why
