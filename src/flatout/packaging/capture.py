"""From a model to a `Program`: torch.export's graph, written with our own nodes, and the tensors that it uses."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from flatout.base.errors import ModelError
from flatout.packaging.operators import operator_name
from flatout.packaging.ports import Port
from flatout.packaging.program import Node, Program, written_argument

_CHECKS = frozenset(
    {"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "sym_constrain_range_for_size"}
)


@dataclass(frozen=True)
class Captured:
    """`dynamic` has the names of inputs whose other dimensions may have any size, beside the rows. `exported` is torch's own
    form of the same graph, if it takes the same inputs; ONNX is made from it."""

    program: Program
    weights: dict[str, Tensor]
    dynamic: tuple[str, ...]
    exported: torch.export.ExportedProgram | None = None


def capture(module: nn.Module, samples: Mapping[str, Tensor], lengths: Sequence[str] = ()) -> Captured:
    """The program of `module`, which takes the tensors of `samples` by position and returns a dict.

    `lengths` are inputs whose second dimension should take any size; if the model does not allow it, they keep theirs.
    ModelError says in one line why a model can't be written as a graph.
    """
    if lengths:
        try:
            return _captured(module, samples, tuple(lengths))
        except ModelError:
            pass  # a model of one length
    return _captured(module, samples, ())


def _captured(module: nn.Module, samples: Mapping[str, Tensor], dynamic: tuple[str, ...]) -> Captured:
    any_size = torch.export.Dim.DYNAMIC
    shapes = [{0: any_size, 1: any_size} if name in dynamic else {0: any_size} for name in samples]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            exported = torch.export.export(module, tuple(samples.values()), dynamic_shapes=(tuple(shapes),), strict=False)
            if _changes_in_place(exported.graph):
                exported = exported.run_decompositions({})  # they become functions: order alone no longer matters
        except Exception as error:
            raise ModelError(f"torch.export can't write the model as a graph: {_first_line(error)}") from error
    program, weights = _Writing(exported, samples, dynamic).done()
    whole = [port.name for port in program.inputs] == list(samples)
    return Captured(program, weights, dynamic, exported if whole else None)


def _changes_in_place(graph: fx.Graph) -> bool:
    called = [node.target for node in graph.nodes if node.op == "call_function"]
    kinds = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)  # the latter hold graphs of their own
    return any(isinstance(one, kinds[1]) or (isinstance(one, kinds[0]) and one._schema.is_mutable) for one in called)


class _Writing:
    """Nodes of an exported graph, renumbered; checks, unused nodes and operations without effect are left out."""

    def __init__(self, exported: Any, samples: Mapping[str, Tensor], dynamic: tuple[str, ...]) -> None:
        self._exported, self._samples, self._dynamic = exported, samples, dynamic
        self._nodes: list[Node] = []
        self._used: list[str] = []  # names of the inputs that an output depends on; users need not give others
        self._numbers: dict[fx.Node, int] = {}
        self._weights: dict[str, Tensor] = {}
        self._weight_numbers: dict[tuple[Any, ...], int] = {}

    def done(self) -> tuple[Program, dict[str, Tensor]]:
        signature = self._exported.graph_signature
        graph: fx.Graph = self._exported.graph_module.graph
        named = {spec.arg.name: spec.target for spec in signature.input_specs if spec.target is not None}
        columns = dict(zip(signature.user_inputs, self._samples, strict=True))
        returned = self._returned(graph)
        for node in self._needed(graph, returned):
            if node.op == "placeholder":
                if node.name in named:
                    self._weight(node, named[node.name])
                else:
                    self._add(node, Node(input=len(self._used)))
                    self._used.append(columns[node.name])
            elif node.op == "call_function":
                self._call(node)
            else:
                raise ModelError(f"the model has control flow that depends on data ({node.op} {node.target})")
        spec = self._exported.call_spec.out_spec
        names = list(torch.utils._pytree.tree_unflatten(list(range(len(returned))), spec))
        inputs = tuple(self._input(name, self._samples[name]) for name in self._used)
        outputs = tuple(self._output(name, node) for name, node in zip(names, returned, strict=True))
        program = Program(inputs, outputs, tuple(self._nodes), tuple(self._number(node) for node in returned))
        return program, self._weights

    def _returned(self, graph: fx.Graph) -> list[fx.Node]:
        """The outputs of the user. A changed buffer is dropped if no output depends on it: then every call is the same."""
        signature = self._exported.graph_signature
        last = next(iter(reversed(graph.nodes)))
        kinds = torch.export.graph_signature.OutputKind
        pairs = list(zip(signature.output_specs, last.args[0], strict=True))
        returned = [node for spec, node in pairs if spec.kind == kinds.USER_OUTPUT]
        changed = {spec.target for spec, _ in pairs if spec.kind == kinds.BUFFER_MUTATION}
        buffers = {spec.arg.name: spec.target for spec in signature.input_specs if spec.target in changed}
        for node in self._needed(graph, returned):
            if node.name in buffers:
                raise ModelError(
                    f"the model's answers depend on its buffer {buffers[node.name]!r}, which changes with every call"
                )
        if any(spec.kind == kinds.USER_INPUT_MUTATION for spec, _ in pairs):
            raise ModelError("the model changes its input in place")
        return returned

    def _needed(self, graph: fx.Graph, returned: Sequence[fx.Node]) -> list[fx.Node]:
        wanted: set[fx.Node] = set()
        pending = list(returned)
        while pending:
            node = pending.pop()
            if node not in wanted:
                wanted.add(node)
                pending += node.all_input_nodes
        return [node for node in graph.nodes if node in wanted]

    def _call(self, node: fx.Node) -> None:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._opname in _CHECKS:
            return
        name = operator_name(node.target)
        if (same := _without_effect(node, name)) is not None:
            self._numbers[node] = self._number(same)
            return
        args = [written_argument(one, self._number) for one in node.args]
        kwargs = {key: written_argument(one, self._number) for key, one in node.kwargs.items() if key != "pin_memory"}
        self._add(node, Node(name, tuple(args), kwargs))

    def _weight(self, node: fx.Node, target: str) -> None:
        """A tensor that has two names, as tied weights have, is kept once."""
        exported = self._exported
        tensor: Tensor = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
        tensor = tensor.detach()
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype) if tensor.numel() else (target,)
        if place in self._weight_numbers:
            self._numbers[node] = self._weight_numbers[place]
            return
        self._add(node, Node(weight=target))
        if tensor.is_complex():  # pairs of real numbers: not every version of safetensors has complex ones
            self._weights[target] = torch.view_as_real(tensor.resolve_conj()).contiguous()
            self._add(node, Node("aten.view_as_complex.default", ({"node": self._numbers[node]},)))
        else:
            self._weights[target] = tensor.contiguous()
        self._weight_numbers[place] = self._numbers[node]

    def _add(self, node: fx.Node, written: Node) -> None:
        self._numbers[node] = len(self._nodes)
        self._nodes.append(written)

    def _number(self, node: fx.Node) -> int:
        return self._numbers[node]

    def _input(self, name: str, tensor: Tensor) -> Port:
        rest = tuple(tensor.shape[1:])
        sizes = (None, *rest[1:]) if name in self._dynamic else rest
        return Port(name, _dtype(tensor.dtype), (None, *sizes))

    def _output(self, name: str, node: fx.Node) -> Port:
        value = node.meta["val"]
        return Port(name, _dtype(value.dtype), tuple(size if isinstance(size, int) else None for size in value.shape))


def _without_effect(node: fx.Node, name: str) -> fx.Node | None:
    """The input of an operation that changes nothing: dropout outside of training, a conversion to the type that it has."""
    if not node.args or not isinstance(first := node.args[0], fx.Node):
        return None
    if name == "aten.dropout.default" and node.args[2] is False:
        return first
    if name == "aten.clone.default" and not node.kwargs:
        return first  # nothing is changed in place
    if name in ("aten.detach.default", "aten.detach_.default", "aten.alias.default", "aten.lift_fresh_copy.default"):
        return first
    if name == "aten.to.dtype" and len(node.args) == 2 and not node.kwargs and node.args[1] == first.meta["val"].dtype:
        return first
    return None


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
