"""Captures the forward and backward pass of a model's call as two CUDA graphs. Raises NotAlone if a replay would not do the
same as the call."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import transformer
from torch.utils._pytree import tree_flatten

from flatout.boost.remedies.call_form import rebuilt
from flatout.boost.remedies.host_made import HostMade, NotAlone, place_of
from flatout.boost.remedies.model_state import SIMPLE, HostState, inside, state_of
from flatout.doctor.observing.compiling import compiled_so_far

_WATCHED, _WARM_UP = 2, 3

_Told = tuple[list[Tensor], list["_Constant | None"], Any]  # tensors, the other leaves (None for tensors), and the structure


@dataclass
class Capture:
    """The memory that a replay reads and writes."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    learns: list[bool]  # whether each output has a gradient
    rest: list[Any]  # other leaves of the result; None in place of tensors
    form: Any
    weights: list[Tensor]
    going_in: list[Tensor]  # gradients of outputs that have one
    reach: list[list[bool]]  # for each of these outputs, which weights its gradient reaches
    coming_out: list[Tensor | None]
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    held: list[Tensor]  # other tensors that a replay reads, kept alive
    replays: int = 0
    in_use: Any = None  # reference to a call whose backward pass still needs this memory


@dataclass(frozen=True)
class _Constant:
    value: Any


def captured(module: nn.Module, leaves: list[Any], form: Any, before: HostState) -> Capture:
    rehearsal = _Rehearsal(module, leaves, form)
    host_made = HostMade(module, rehearsal.stand_ins.values())
    beside, forward, backward = torch.cuda.Stream(), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with _nothing_stays(module, host_made):
        reach, told = _warmed_up(rehearsal, host_made, before, beside)
        # compiled code makes its own transfers; if they can't be captured, the capture fails
        watched = nullcontext() if _is_any_compiled(module) else host_made.watched(captured=True)
        with _recorded(forward, beside), watched:
            outputs, rest, shape = rehearsal.forward()
        if rest != told:
            raise NotAlone
        going_in = _likes(outputs)
        with _recorded(backward, beside):  # with separate memory, so that the forward's results stay for another backward pass
            coming_out = rehearsal.backward(outputs, going_in)
        rehearsal.check()
        if any(one is not None and one.layout != torch.strided for one in coming_out):
            raise NotAlone
    return Capture(
        inputs=rehearsal.tensors(),
        outputs=[one.detach() for one in outputs],
        learns=[one.requires_grad for one in outputs],
        rest=rest,
        form=shape,
        weights=list(rehearsal.weights.values()),
        going_in=going_in,
        reach=reach,
        coming_out=list(coming_out),
        forward=forward,
        backward=backward,
        held=[*host_made.places(), *host_made.outside.values(), *module.buffers(), *_own_tensors(module)],
    )


class _Rehearsal:
    """A call with fixed inputs: copies of its arguments, and stand-ins for the trained weights.

    Stand-ins share the weights' memory. The weights' own autograd state belongs to the script's stream and would tie that
    stream to the captured one.
    """

    def __init__(self, module: nn.Module, leaves: list[Any], form: Any) -> None:
        self.module, self._form = module, form
        self.inputs = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.stand_ins = {name: weight.detach().requires_grad_() for name, weight in self.weights.items()}
        self._first = dict(self.stand_ins)

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.inputs if isinstance(leaf, Tensor)]

    def forward(self, as_captured: bool = True) -> _Told:
        args, named = rebuilt(self.inputs, self._form)
        torch.clear_autocast_cache()  # casts of weights must be part of this call
        with flat_weights(self.module, self.weights, self.stand_ins), _as_if_captured() if as_captured else nullcontext():
            found, shape = tree_flatten(functional_call(self.module, self.stand_ins, args, named))
        if any(leaf.device.type == "cpu" if isinstance(leaf, Tensor) else type(leaf) not in SIMPLE for leaf in found):
            raise NotAlone  # a value computed for this call, or an object that may hold tensors
        tensors = [leaf for leaf in found if isinstance(leaf, Tensor)]
        return tensors, [None if isinstance(leaf, Tensor) else _Constant(leaf) for leaf in found], shape

    def backward(self, outputs: list[Tensor], going_in: list[Tensor], stays: bool = False) -> tuple[Tensor | None, ...]:
        ends = [one for one in outputs if one.requires_grad]
        with torch.autocast("cuda", enabled=False), _as_if_captured():  # only the forward runs under the script's autocast
            return torch.autograd.grad(ends, list(self.stand_ins.values()), going_in, allow_unused=True, retain_graph=stays)

    def reach(self, outputs: list[Tensor]) -> list[list[bool]]:
        """Which weights the gradient of each output reaches. Empty for a single output."""
        ends = [one for one in outputs if one.requires_grad]
        if len(ends) < 2:
            return []
        return [[one is not None for one in self.backward([end], _likes([end]), stays=True)] for end in ends]

    def check(self) -> None:
        """NotAlone if the forward writes to its inputs or replaces a weight's memory, because here it does so to copies."""
        if any(leaf._version for leaf in self.tensors()):
            raise NotAlone
        for name, weight in self.weights.items():
            now = self.stand_ins[name]
            if now is not self._first[name] or now.data_ptr() != weight.data_ptr():
                raise NotAlone


def _warmed_up(
    rehearsal: _Rehearsal, host_made: HostMade, before: HostState, beside: torch.cuda.Stream
) -> tuple[list[list[bool]], list[_Constant | None]]:
    """Which weights each output reaches, and the call's non-tensor results, which must be the same each time."""
    module = rehearsal.module
    states, told = [state_of(module)], list[list[_Constant | None]]()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        with host_made.watched(only_writes=True):
            rehearsal.forward(as_captured=False)
        states.append(state_of(module))
        wrote = host_made.wrote
        for _ in range(_WATCHED):
            with host_made.watched():
                told.append(rehearsal.forward()[1])
            states.append(state_of(module))
        if host_made.wrote != wrote:
            raise NotAlone  # the model writes to its state only when it is not captured
        for _ in range(_WARM_UP):
            outputs, rest, _ = rehearsal.forward()
            reach = rehearsal.reach(outputs)
            rehearsal.backward(outputs, _likes(outputs))
            del outputs
            states.append(state_of(module))
            told.append(rest)
    torch.cuda.current_stream().wait_stream(beside)
    # state that changes with each call can't be replayed
    changes = any(state != states[0] for state in states) or any(rest != told[0] for rest in told)
    if changes or before.has_drawn() or not host_made.is_settled():
        raise NotAlone
    rehearsal.check()
    own = (*_own_tensors(module), *module.parameters(), *module.buffers(), *rehearsal.tensors())
    if host_made.outside.keys() - {place_of(one) for one in own}:
        raise NotAlone  # a tensor outside the model: the script may replace it
    return reach, rest


@contextmanager
def _nothing_stays(module: nn.Module, host_made: HostMade) -> Iterator[None]:
    """Restores random state and device memory that a rehearsal has changed."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    generator = torch.cuda.get_rng_state()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        with torch.no_grad():
            for buffer, was in buffers:
                buffer.data.copy_(was)  # .data, so that a pending backward pass does not see a change
        host_made.put_back()
        torch.cuda.set_rng_state(generator)


@contextmanager
def _recorded(graph: torch.cuda.CUDAGraph, beside: torch.cuda.Stream) -> Iterator[None]:
    pool, collects = torch.cuda.graph_pool_handle(), gc.isenabled()
    gc.disable()  # freeing an earlier graph, or waiting for the device, would break the capture
    try:
        with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local", pool=pool):
            yield
    except BaseException:
        with suppress(Exception):  # after a failed capture, the allocator may still be in capture mode
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        raise
    finally:
        if collects:
            gc.enable()


def _likes(outputs: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(one) for one in outputs if one.requires_grad]


def _own_tensors(module: nn.Module) -> list[Tensor]:
    """Tensors that its modules hold as plain attributes, neither weights nor buffers."""
    held = (one for part in module.modules() for value in vars(part).values() for one in inside(value))
    return [one for one in held if isinstance(one, Tensor)]


def _is_any_compiled(module: nn.Module) -> bool:
    """Is the model, a part of it, or anything else in this process compiled? The model may call a compiled function."""
    named = any(getattr(part, "_compiled_call_impl", None) is not None for part in module.modules())
    return named or compiled_so_far().compiles > 0


@contextmanager
def _as_if_captured() -> Iterator[None]:
    """Makes a rehearsal take the same path as the capture. Models read a mask to see whether it is causal, and a graph can't
    wait for that read. transformers skips the check during a capture; torch's layers do not, so their check is replaced.
    This is always correct, because the layers also get the mask itself."""
    looking, asked = transformer._detect_is_causal_mask, torch.cuda.is_current_stream_capturing
    transformer._detect_is_causal_mask, torch.cuda.is_current_stream_capturing = _not_looking, _captured
    try:
        yield
    finally:
        transformer._detect_is_causal_mask, torch.cuda.is_current_stream_capturing = looking, asked


def _not_looking(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return bool(is_causal)


def _captured() -> bool:
    return True


@contextmanager
def flat_weights(module: nn.Module, weights: dict[str, nn.Parameter], stand_ins: dict[str, Tensor]) -> Iterator[None]:
    """Replaces the second list of weights in torch's recurrent layers, which `functional_call` does not replace. If the lists
    differed, the layer would copy its weights to new memory, but stand-ins must share the weights' memory."""
    instead = {id(weights[name]): stand_in for name, stand_in in stand_ins.items()}
    layers = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    own: list[tuple[Any, Any]] = [(layer._flat_weights, layer._flat_weight_refs) for layer in layers]
    for layer in layers:
        flat = [instead.get(id(weight), weight) for weight in layer._flat_weights]
        named = [None if weight is None else ref(weight) for weight in flat]
        vars(layer).update(_flat_weights=flat, _flat_weight_refs=named, flatten_parameters=lambda: None)
    try:
        yield
    finally:
        for layer, (flat, refs) in zip(layers, own, strict=True):
            vars(layer).update(_flat_weights=flat, _flat_weight_refs=refs)
            del vars(layer)["flatten_parameters"]
