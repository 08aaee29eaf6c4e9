"""The forward of a model as one CUDA graph and its backward as another: two launches instead of hundreds.

`torch.cuda.make_graphed_callables` does as much for a loop that was written for it. A script that was not may keep an output,
add up gradients over several batches, call a model twice before it goes back, or change the model: then this one takes the
plain call, or a copy, where that one would give a wrong number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import module as of_all
from torch.nn.modules import transformer
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten, tree_unflatten

from flatout.boost.hooks import Call, Hooks
from flatout.boost.remedies.host_made import HostMade, NotAlone, place_of
from flatout.boost.remedies.model_state import HOOKS, SIMPLE, Changes, HostState, inside, places_of, state_of
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.boost.remedies.script_state import ScriptState
from flatout.doctor.diagnosis import Diagnosis
from flatout.doctor.observing.compiling import compiled_so_far

_WATCHED, _WARM_UP = 2, 3
_AT_ONCE, _MOST, _OFTEN = 3, 8, 20  # captures without waiting, captures in all, calls of a shape that is worth one


class CudaGraphs(Remedy):
    name = "cuda_graphs"
    of_gpu = True
    spares_launches = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        calls = [call for call in case.training_calls if call.parameter_dtype]
        if not case.on_device or not calls or any(call.compiled or call.parallel for call in calls):
            return []
        return [Offer(self.name, "on", "off", predicted(diagnosis, "launch_bound", "small_batch"))]

    def apply(self, value: Any, hooks: Hooks) -> None:
        models: WeakKeyDictionary[nn.Module, _Model] = WeakKeyDictionary()
        changes = Changes(hooks.patches)

        def call(plain: Call, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if not module.training or not torch.is_grad_enabled():
                return plain(*args, **named)
            model = models.get(module)
            if model is None:
                model = models[module] = _Model(changes)
            return model(plain, module, args, named)

        hooks.calls.append(call)
        hooks.patches.wrap(torch.autograd, "backward", _on_this_thread)
        hooks.patches.wrap(torch.autograd, "grad", lambda original: _noting_what_stays(original, 3))
        hooks.patches.wrap(transformer, "_detect_is_causal_mask", _not_looking)


def _is_looked_into() -> bool:
    """By a transform of torch.func, by a graph that the script captures itself, or by hooks on all modules."""
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.cuda.is_current_stream_capturing():
        return True
    return any(getattr(of_all, f"_global{kind}", None) for kind in HOOKS)


def _on_this_thread(original: Any) -> Any:
    """To go back is one launch now: to hand it to autograd's own thread and wait for that takes longer than to do it."""
    noting = _noting_what_stays(original, 2)

    def backward(*args: Any, **named: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return noting(*args, **named)

    return backward


class _Back:
    """The way back that is gone now: may it be gone once more?"""

    retained = False


def _noting_what_stays(original: Any, at: int) -> Any:
    """`at`: where the arguments that say so stand, where they have no names."""

    def back(*args: Any, **named: Any) -> Any:
        was, given = _Back.retained, [*args[at : at + 2], named.get("retain_graph"), named.get("create_graph")]
        _Back.retained = any(given)
        try:
            return original(*args, **named)
        finally:
            _Back.retained = was

    return back


def _not_looking(original: Any) -> Any:
    """Layers of torch read a mask to see whether it is the usual one, and a graph can't wait for that. They get the mask, too:
    not to know is never wrong."""

    def detect(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        if is_causal is None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False
        return bool(original(mask, is_causal, size))

    return detect


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
    reach: list[list[bool]]  # of each of those: which weights does its gradient come to?
    coming_out: list[Tensor | None]
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    held: list[Tensor]  # whatever else of the model it reads stays where it is
    replays: int = 0
    in_use: Any = None  # a call whose way back is still to come needs what it left here


class _Token:
    """Lives as long as the way back of one call may come."""


@dataclass
class _Model:
    changes: Changes
    seen: int = -1  # of the changes
    state: Any = None
    script: ScriptState | None = None
    script_seen: Any = None
    slots: list[tuple[dict[str, Any], str]] = field(default_factory=list)  # of weights and buffers in its parts
    places: list[tuple[int, int, bool]] = field(default_factory=list)  # what is in each
    captures: dict[Any, _Capture] = field(default_factory=dict)
    calls: dict[Any, int] = field(default_factory=dict)
    made: int = 0
    refused: bool = False

    def __call__(self, plain: Call, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self.refused:
            return plain(*args, **named)
        leaves, form = _flattened(args, named)
        key = _key(leaves, form)
        if key is None or _is_looked_into():
            return plain(*args, **named)
        if not self.slots and any(map(is_lazy, module.parameters())):
            return plain(*args, **named)  # it gets its weights in this call
        self._look_at(module)
        if self.refused or not any(learns for _, _, learns in self.places):
            return plain(*args, **named)
        capture = self.captures.get(key)
        if capture is None:
            if self.made >= _MOST:
                return plain(*args, **named)
            self.calls[key] = self.calls.get(key, 0) + 1
            if self.calls[key] == 1 and any(isinstance(part, nn.RNNBase) and part.dropout for part in module.modules()):
                return plain(*args, **named)  # cuDNN draws a seed for its dropout at the first
            if self.made >= _AT_ONCE and self.calls[key] < _OFTEN:
                return plain(*args, **named)
            capture = self._captured(module, leaves, form)
            if capture is None:
                return plain(*args, **named)
            self.captures[key] = capture
            self.seen, self.state = self.changes.count, state_of(module)  # its first call may have made it keep something
            self.script_seen = self.script.seen() if self.script is not None else None
            self.made += 1
        if capture.in_use is not None and capture.in_use() is not None:
            return plain(*args, **named)
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        replayed = iter(_Replay.apply(capture, len(given), *given, *capture.weights))  # type: ignore[no-untyped-call]
        return tree_unflatten([next(replayed) if one is None else one.value for one in capture.rest], capture.form)

    def _look_at(self, module: nn.Module) -> None:
        """What was captured does what the model did before: where that may have changed, it is looked through."""
        places, script = places_of(self.slots), self.script.seen() if self.script is not None else None
        if self.seen == self.changes.count and places == self.places and script == self.script_seen:
            return
        if (state := state_of(module)) != self.state or script != self.script_seen:
            self.state, self.captures, self.calls = state, {}, {}
        self.script = ScriptState(module)
        self.refused |= self.script.cannot_tell
        self.seen, self.script_seen = self.changes.count, self.script.seen()
        self.slots = [
            (slots, name)
            for part in module.modules()
            for slots in (part._parameters, part._buffers, vars(part))
            for name, tensor in slots.items()
            if isinstance(tensor, Tensor)
        ]
        self.places = places_of(self.slots)

    def _captured(self, module: nn.Module, leaves: list[Any], form: Any) -> _Capture | None:
        """None where it can't be: the script goes on as it is."""
        here = torch.device("cuda", torch.cuda.current_device())
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if any(one.device != here for one in (*module.parameters(), *module.buffers(), *given)) or any(
            _is_out_of_reach(part) for part in module.modules()
        ):
            self.refused = True
            return None
        stream, before = torch.cuda.current_stream(), HostState(module)
        try:
            return _capture(module, leaves, form, before)
        except Exception:  # whatever the model does that a graph can't, it may do without one
            self.refused = True
            torch.cuda.set_stream(stream)
            torch.cuda.synchronize()  # raises where the device is lost, too
            before.put_back()
            return None


def _capture(module: nn.Module, leaves: list[Any], form: Any, before: HostState) -> _Capture:
    inputs = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    # the same memory under other names: what autograd knows of the weights themselves belongs to the script's stream,
    # and would tie it to the one that is captured
    stand_ins = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    generator, pools = torch.cuda.get_rng_state(), (torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle())
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # a weight's cast is part of the graph, not what is left of an earlier one
    torch.clear_autocast_cache()

    host_made = HostMade(module, stand_ins.values())
    instead = dict(stand_ins)

    def called() -> tuple[list[Tensor], list[_Constant | None], Any]:
        args, named = _rebuilt(inputs, form)
        with _flat_weights(module, weights, stand_ins):
            found, shape = tree_flatten(functional_call(module, stand_ins, args, named))
        if any(not (leaf.is_cuda if isinstance(leaf, Tensor) else type(leaf) in SIMPLE) for leaf in found):
            raise NotAlone  # a number that was made for this call, or something that may hold tensors of its own
        tensors = [leaf for leaf in found if isinstance(leaf, Tensor)]
        return tensors, [None if isinstance(leaf, Tensor) else _Constant(leaf) for leaf in found], shape

    def back(outputs: list[Tensor], going_in: list[Tensor], stays: bool = False) -> tuple[Tensor | None, ...]:
        ends = [one for one in outputs if one.requires_grad]
        with torch.autocast("cuda", enabled=False):  # the forward alone is inside of the script's
            return torch.autograd.grad(ends, list(stand_ins.values()), going_in, allow_unused=True, retain_graph=stays)

    def reaches(outputs: list[Tensor]) -> list[list[bool]]:
        ends = [one for one in outputs if one.requires_grad]
        return [[one is not None for one in back([end], likes([end]), stays=True)] for end in ends] if len(ends) > 1 else []

    def check() -> None:
        """A forward that writes to its inputs, or puts other memory in the place of a weight, does that to copies here."""
        if any(leaf._version for leaf in inputs if isinstance(leaf, Tensor)):
            raise NotAlone
        moved = (stand_ins[name].data_ptr() != weight.data_ptr() for name, weight in weights.items())
        if any(moved) or any(stand_ins[name] is not one for name, one in instead.items()):
            raise NotAlone

    def likes(outputs: list[Tensor]) -> list[Tensor]:
        return [torch.zeros_like(one) for one in outputs if one.requires_grad]

    try:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        states = []
        with torch.cuda.stream(beside):
            for _ in range(_WATCHED):
                with host_made.watched():
                    _, rest, _ = called()
                states.append((state_of(module), rest))
            for _ in range(_WARM_UP):
                outputs, rest, _ = called()
                reach = reaches(outputs)
                back(outputs, likes(outputs))
                del outputs
                states.append((state_of(module), rest))
        torch.cuda.current_stream().wait_stream(beside)
        # what it makes for itself in its first call is kept; what changes with every call can't be replayed
        if any(state != states[1] for state in states[1:]) or before.has_drawn() or not host_made.is_settled():
            raise NotAlone
        check()
        if host_made.outside.keys() - _places_inside(module, inputs):
            raise NotAlone  # a tensor that is no part of the model: the script may have another one next time
        # compiled code sends what it needs by itself, and a graph that can't take that is none
        watched = nullcontext() if _is_any_compiled(module) else host_made.watched(captured=True)
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, stream=beside, capture_error_mode="thread_local", pool=pools[0]), watched:
            outputs, rest, shape = called()
        if rest != states[-1][1]:
            raise NotAlone
        going_in = likes(outputs)
        # with memory of its own: what the forward left stays for another way back
        with torch.cuda.graph(backward, stream=beside, capture_error_mode="thread_local", pool=pools[1]):
            coming_out = back(outputs, going_in)
        check()
        if any(one is not None and one.layout != torch.strided for one in coming_out):
            raise NotAlone
    except BaseException:
        for pool in pools:  # where a capture was broken off, the allocator may believe that it goes on
            with suppress(Exception):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        raise
    finally:
        torch.set_autocast_cache_enabled(cached)
        torch.clear_autocast_cache()
        with torch.no_grad():
            for buffer, was in buffers:
                buffer.data.copy_(was)  # a way back that is still to come must not take it for a change
        host_made.put_back()
        torch.cuda.set_rng_state(generator)
    return _Capture(
        [leaf for leaf in inputs if isinstance(leaf, Tensor)],
        [one.detach() for one in outputs],
        [one.requires_grad for one in outputs],
        rest,
        shape,
        list(weights.values()),
        going_in,
        reach,
        list(coming_out),
        forward,
        backward,
        [
            *host_made.places(),
            *host_made.outside.values(),
            *module.buffers(),
            *(
                one
                for part in module.modules()
                for value in vars(part).values()
                for one in inside(value)
                if isinstance(one, Tensor)
            ),
        ],
    )


def _places_inside(module: nn.Module, inputs: list[Any]) -> set[int]:
    own = [one for part in module.modules() for value in vars(part).values() for one in inside(value)]
    tensors = [one for one in (*own, *inputs, *module.parameters(), *module.buffers()) if isinstance(one, Tensor)]
    return {place_of(one) for one in tensors}


def _is_any_compiled(module: nn.Module) -> bool:
    """The model, a part of it, or anything else in this process: a function that it calls may be."""
    named = any(getattr(part, "_compiled_call_impl", None) is not None for part in module.modules())
    return named or compiled_so_far().compiles > 0


@contextmanager
def _flat_weights(module: nn.Module, weights: dict[str, nn.Parameter], stand_ins: dict[str, Tensor]) -> Iterator[None]:
    """A recurrent layer of torch keeps its weights in a second place, which `functional_call` knows nothing of. Where they are
    not those that it refers to, it would move them into memory of their own: what stands in for a weight shares that one's."""
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


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, capture: _Capture, count: int, *given: Tensor) -> tuple[Tensor, ...]:
        for place, tensor in zip(capture.inputs, given[:count], strict=True):
            place.copy_(tensor)
        capture.forward.replay()
        capture.replays += 1
        ctx.set_materialize_grads(False)
        ctx.capture, ctx.count, ctx.replay, ctx.token = capture, count, capture.replays, _Token()
        capture.in_use = ref(ctx.token)
        results = tuple(output.clone() for output in capture.outputs)  # the next replay writes over its own
        fixed = [result for result, learns in zip(results, capture.learns, strict=True) if not learns]
        ctx.mark_non_differentiable(*fixed)
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        capture: _Capture = ctx.capture
        if ctx.replay != capture.replays:
            raise RuntimeError("the way back was asked for again, and the next forward has taken the place of what it needs")
        if not _Back.retained:
            capture.in_use = None
        wanted = [one for one, learns in zip(gradients, capture.learns, strict=True) if learns]
        for place, gradient in zip(capture.going_in, wanted, strict=True):
            place.zero_() if gradient is None else place.copy_(gradient)
        capture.backward.replay()
        # copies, all of them at once: a script may keep what it gets, add to it, or scale it
        there = [result for result in capture.coming_out if result is not None]
        copies = iter(torch._foreach_mul(there, 1.0) if there else ())
        results = [None if result is None else next(copies) for result in capture.coming_out]
        if capture.reach and any(gradient is None for gradient in wanted):
            # a weight behind outputs that nobody went back from has no gradient, which is not the same as one of zero
            going = [reach for reach, gradient in zip(capture.reach, wanted, strict=True) if gradient is not None]
            results = [one if any(reach[at] for reach in going) else None for at, one in enumerate(results)]
        return None, None, *[None] * ctx.count, *results


@dataclass(frozen=True)
class _Constant:
    value: Any


def _is_out_of_reach(part: nn.Module) -> bool:
    """A replay would not call hooks, or do for several devices what has to be done at each call."""
    is_parallel = isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel)
    return is_parallel or any(vars(part).get(kind) for kind in HOOKS)


def _flattened(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], Any]:
    """The parts of a call, and its form. Most are lists of tensors, and `tree_flatten` takes long."""
    leaves = [*args, *named.values()]
    if all(isinstance(leaf, Tensor) or type(leaf) in SIMPLE for leaf in leaves):
        return leaves, (len(args), *named)
    return tree_flatten((args, named))


def _rebuilt(leaves: list[Any], form: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(form, tuple):
        return tuple(leaves[: form[0]]), dict(zip(form[1:], leaves[form[0] :], strict=True))
    args, named = tree_unflatten(leaves, form)
    return args, named


def _key(leaves: list[Any], form: Any) -> Any:
    """None where a call can't be replayed: a graph reads from fixed places on the device, and goes back to weights alone."""
    parts: list[Any] = [torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None]
    tensors = 0
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if not leaf.is_cuda or leaf.requires_grad or leaf.layout != torch.strided:
                return None
            parts.append((leaf.shape, leaf.dtype, leaf.stride()))
            tensors += 1
        elif type(leaf) in SIMPLE:
            parts.append((type(leaf), leaf))
        else:
            return None
    if not tensors:
        return None
    parts.append(torch.cuda.current_stream().cuda_stream)
    return form if isinstance(form, tuple) else str(form), tuple(parts)
