"""The forward of a model as one CUDA graph and its backward as another: two launches instead of hundreds.

`torch.cuda.make_graphed_callables` does as much for a loop that was written for it. A script that was not may keep an output,
add up gradients over several batches, call a model twice before it goes back, or change its mode: then this one takes the
plain call, or a copy, where that one would give a wrong number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from flatout.boost.hooks import Call, Hooks, learns
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.account import DATA
from flatout.doctor.diagnosis import Diagnosis

_BUSY = 0.6  # of a step without its wait for data: a device that computes for longer has little to wait for
_WARM_UP = 3
_AT_ONCE, _MOST, _OFTEN = 3, 8, 20  # captures without waiting, captures in all, calls of a shape that is worth one


class CudaGraphs(Remedy):
    name = "cuda_graphs"

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        calls = [call for call in case.training_calls if call.parameter_dtype]
        if not case.on_device or not calls or any(call.compiled or call.parallel for call in calls):
            return []
        if case.compute_ms > _BUSY * (case.train_ms - case.rows[DATA]):
            return []
        return [Offer(self.name, "on", "off", predicted(diagnosis, "launch_bound", "small_batch"))]

    def apply(self, value: Any, hooks: Hooks) -> None:
        models: dict[int, _Model] = {}

        def call(plain: Call, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if not module.training or not torch.is_grad_enabled() or not learns(module):
                return plain(*args, **named)
            if id(module) not in models:
                models[id(module)] = _Model(module)
            return models[id(module)](plain, args, named)

        hooks.calls.append(call)


@dataclass
class _Capture:
    """Where a replay reads and writes."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    learns: list[bool]  # of each output: does a gradient come back to it?
    rest: list[Any]  # of what the call returns: None where a tensor belongs
    form: Any
    weights: list[Tensor]
    going_in: list[Tensor]  # gradients of those outputs that have one
    coming_out: list[Tensor | None]
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    in_use: Any = None  # a call whose way back is still to come needs what it left here


class _Token:
    """Lives as long as the way back of one call may come."""


@dataclass
class _Model:
    module: nn.Module
    parts: list[nn.Module] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    mode: Any = None
    captures: dict[Any, _Capture | None] = field(default_factory=dict)  # None: seen, and not captured
    calls: dict[Any, int] = field(default_factory=dict)
    made: int = 0
    refused: bool = False

    def __post_init__(self) -> None:
        self.parts = list(self.module.modules())
        self.weights = list(self.module.parameters())
        # a recurrent layer of torch keeps its weights in a second place, too
        self.refused = not all(weight.is_cuda for weight in self.weights) or _has(self.parts, nn.RNNBase)

    def __call__(self, plain: Call, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self.refused:
            return plain(*args, **named)
        leaves, form = tree_flatten((args, named))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = _key(leaves, form)
        if key is None or not given:
            return plain(*args, **named)
        mode = self._mode()
        if mode != self.mode:  # what was captured does what the model did before
            self.mode, self.captures, self.calls = mode, {}, {}
        capture = self.captures.get(key)
        if capture is None:
            self.calls[key] = self.calls.get(key, 0) + 1
            if self.made >= _MOST or (self.made >= _AT_ONCE and self.calls[key] < _OFTEN):
                return plain(*args, **named)
            if _has_hooks(self) or (capture := self._captured(leaves, form)) is None:
                self.refused = True
                return plain(*args, **named)
            self.captures[key] = capture
            self.made += 1
        if capture.in_use is not None and capture.in_use() is not None:
            return plain(*args, **named)
        replayed = iter(_Replay.apply(capture, len(given), *given, *capture.weights))  # type: ignore[no-untyped-call]
        return tree_unflatten([next(replayed) if one is None else one.value for one in capture.rest], capture.form)

    def _mode(self) -> Any:
        """All of a model that a script may turn between two calls."""
        parts = tuple((part.training, part.__dict__.get("p"), part.__dict__.get("dropout")) for part in self.parts)
        amp = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        return parts, tuple((weight.data_ptr(), weight.requires_grad) for weight in self.weights), amp

    def _captured(self, leaves: list[Any], form: Any) -> _Capture | None:
        """None where a call does more than compute: a graph would do that once, and never again."""
        inputs = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        weights = {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}
        # the same memory under other names: what autograd knows of the weights themselves belongs to the script's stream,
        # and would tie it to the one that is captured
        stand_ins = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        buffers = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        generators = torch.cuda.get_rng_state()
        before = _host_state(self.parts)
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a weight's cast is part of the graph, not what is left of an earlier one
        torch.clear_autocast_cache()

        def called() -> tuple[list[Tensor], list[_Constant | None], Any]:
            args, named = tree_unflatten(inputs, form)
            found, shape = tree_flatten(functional_call(self.module, stand_ins, args, named))
            tensors = [leaf for leaf in found if isinstance(leaf, Tensor)]
            return tensors, [None if isinstance(leaf, Tensor) else _Constant(leaf) for leaf in found], shape

        def back(outputs: list[Tensor], going_in: list[Tensor]) -> tuple[Tensor | None, ...]:
            ends = [one for one in outputs if one.requires_grad]
            return torch.autograd.grad(ends, list(stand_ins.values()), going_in, allow_unused=True)

        def likes(outputs: list[Tensor]) -> list[Tensor]:
            return [torch.zeros_like(one) for one in outputs if one.requires_grad]

        try:
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(_WARM_UP):
                    outputs = called()[0]
                    back(outputs, likes(outputs))
                    del outputs
            torch.cuda.current_stream().wait_stream(beside)
            if _host_state(self.parts) != before:
                return None
            forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(forward, stream=beside, capture_error_mode="thread_local"):
                outputs, rest, shape = called()
            going_in = likes(outputs)
            # with memory of its own: a gradient may be kept while the next forward runs
            with torch.cuda.graph(backward, stream=beside, capture_error_mode="thread_local"):
                coming_out = back(outputs, going_in)
            learns = [one.requires_grad for one in outputs]
            outputs = [one.detach() for one in outputs]
        finally:
            torch.set_autocast_cache_enabled(cached)
            torch.clear_autocast_cache()
            with torch.no_grad():
                for buffer, was in buffers:
                    buffer.copy_(was)
            torch.cuda.set_rng_state(generators)
        tensors = [leaf for leaf in inputs if isinstance(leaf, Tensor)]
        return _Capture(
            tensors, outputs, learns, rest, shape, list(weights.values()), going_in, list(coming_out), forward, backward
        )


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, capture: _Capture, count: int, *given: Tensor) -> tuple[Tensor, ...]:
        for place, tensor in zip(capture.inputs, given[:count], strict=True):
            place.copy_(tensor)
        capture.forward.replay()
        ctx.capture, ctx.count, ctx.token = capture, count, _Token()
        capture.in_use = ref(ctx.token)
        results = tuple(output.detach().clone() for output in capture.outputs)  # the next replay writes over its own
        fixed = [result for result, learns in zip(results, capture.learns, strict=True) if not learns]
        ctx.mark_non_differentiable(*fixed)
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        capture: _Capture = ctx.capture
        if ctx.token is None:
            raise RuntimeError("the way back was asked for twice, and a CUDA graph keeps nothing for the second time")
        ctx.token = capture.in_use = None
        wanted = [one for one, learns in zip(gradients, capture.learns, strict=True) if learns]
        for place, gradient in zip(capture.going_in, wanted, strict=True):
            place.zero_() if gradient is None else place.copy_(gradient)
        for weight, result in zip(capture.weights, capture.coming_out, strict=True):
            # gradients are added to what is there: it must not be what the replay is about to overwrite
            if result is not None and weight.grad is not None and weight.grad.data_ptr() == result.data_ptr():
                weight.grad = weight.grad.clone()
        capture.backward.replay()
        results = [None if result is None else result.detach() for result in capture.coming_out]
        return None, None, *[None] * ctx.count, *results


@dataclass(frozen=True)
class _Constant:
    value: Any


def _key(leaves: list[Any], form: Any) -> Any:
    """None where a call can't be replayed: a graph reads from fixed places on the device, and goes back to weights alone."""
    parts: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if not leaf.is_cuda or leaf.requires_grad or leaf.layout != torch.strided:
                return None
            parts.append((leaf.shape, leaf.dtype, leaf.stride()))
        elif leaf is None or isinstance(leaf, bool | int | float | str):
            parts.append(leaf)
        else:
            return None
    return str(form), tuple(parts)


def _has(parts: list[nn.Module], kind: type[nn.Module]) -> bool:
    return any(isinstance(part, kind) for part in parts)


def _has_hooks(model: _Model) -> bool:
    """Which a replay would not call."""
    kinds_of_hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(part, kind) for part in model.parts for kind in kinds_of_hooks)


def _host_state(parts: list[nn.Module]) -> Any:
    """What a forward may change beside tensors on the device."""
    simple = [
        (name, value) for part in parts for name, value in vars(part).items() if isinstance(value, bool | int | float | str)
    ]
    drawn: Any = np.random.get_state()
    return simple, random.getstate(), drawn[1].tobytes(), drawn[2], torch.get_rng_state().numpy().tobytes()
