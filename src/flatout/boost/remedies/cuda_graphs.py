"""Runs a model's forward pass as one CUDA graph and its backward pass as another: two launches instead of hundreds.

`torch.cuda.make_graphed_callables` does this for loops written for it. Other scripts may keep an output, accumulate gradients
over several batches, call a model twice before the backward pass, or change the model. There it would give wrong numbers;
this remedy falls back to the normal call or copies the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_all
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_unflatten

from flatout.boost.hooks import Call, Hooks
from flatout.boost.remedies.call_form import flattened, key_of
from flatout.boost.remedies.graph_capture import Capture, captured
from flatout.boost.remedies.graph_replay import Replay, noting_what_stays, on_this_thread
from flatout.boost.remedies.model_state import HOOKS, Changes, HostState, places_of, state_of
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.boost.remedies.script_state import ScriptState
from flatout.doctor.diagnosis import Diagnosis

_AT_ONCE, _MOST, _OFTEN = 3, 8, 20  # captures made at once, most captures, calls of a shape before a later capture
# calls before a capture: at its first call a model may initialise itself, and cuDNN draws a seed for its dropout
_SETTLED = 2


class CudaGraphs(Remedy):
    name = "cuda_graphs"
    of_gpu = True
    spares_launches = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        calls = [call for call in case.training_calls if call.parameter_dtype]
        if not case.on_device or not calls or any(call.compiled or call.spread for call in calls):
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
        hooks.patches.wrap(torch.autograd, "backward", on_this_thread)
        hooks.patches.wrap(torch.autograd, "grad", lambda original: noting_what_stays(original, 3))


def _is_looked_into() -> bool:
    """Is a torch.func transform, a graph capture of the script, or a global module hook active?"""
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.cuda.is_current_stream_capturing():
        return True
    return any(getattr(of_all, f"_global{kind}", None) for kind in HOOKS)


@dataclass
class _Model:
    changes: Changes
    seen: int = -1  # value of `changes.count` at the last check
    state: Any = None
    script: ScriptState | None = None
    script_seen: Any = None
    slots: list[tuple[dict[str, Any], str]] = field(default_factory=list)  # all tensors of its modules
    places: list[tuple[int, int, bool]] = field(default_factory=list)  # the tensor in each slot
    captures: dict[Any, Capture] = field(default_factory=dict)
    calls: dict[Any, int] = field(default_factory=dict)
    made: int = 0
    refused: bool = False

    def __call__(self, plain: Call, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self.refused:
            return plain(*args, **named)
        leaves, form = flattened(args, named)
        key = key_of(leaves, form)
        if key is None or _is_looked_into():
            return plain(*args, **named)
        if not self.slots and any(map(is_lazy, module.parameters())):
            return plain(*args, **named)  # this call creates the weights
        self._look_at(module)
        if self.refused or not any(learns for _, _, learns in self.places):
            return plain(*args, **named)
        capture = self.captures.get(key)
        if capture is None:
            if self.made >= _MOST:
                return plain(*args, **named)
            self.calls[key] = self.calls.get(key, 0) + 1
            if self.calls[key] < (_OFTEN if self.made >= _AT_ONCE else _SETTLED):
                return plain(*args, **named)
            capture = self._captured(module, leaves, form)
            if capture is None:
                return plain(*args, **named)
            self.captures[key] = capture
            self.seen, self.state = self.changes.count, state_of(module)  # its first call may have set attributes
            self.script_seen = self.script.seen() if self.script is not None else None
            self.made += 1
        if capture.in_use is not None and capture.in_use() is not None:
            return plain(*args, **named)
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        replayed = iter(Replay.apply(capture, len(given), *given, *capture.weights))  # type: ignore[no-untyped-call]
        return tree_unflatten([next(replayed) if one is None else one.value for one in capture.rest], capture.form)

    def _look_at(self, module: nn.Module) -> None:
        """Drops the captures if the model has changed since. Checks it only if something may have changed."""
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

    def _captured(self, module: nn.Module, leaves: list[Any], form: Any) -> Capture | None:
        """None if the call can't be captured; the script then uses normal calls."""
        here = torch.device("cuda", torch.cuda.current_device())
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if any(one.device != here for one in (*module.parameters(), *module.buffers(), *given)) or any(
            _is_out_of_reach(part) for part in module.modules()
        ):
            self.refused = True
            return None
        stream, before = torch.cuda.current_stream(), HostState(module)
        try:
            return captured(module, leaves, form, before)
        except Exception:  # the model does something that a graph can't
            self.refused = True
            torch.cuda.set_stream(stream)
            torch.cuda.synchronize()  # also raises if the device is lost
            before.put_back()
            return None


def _is_out_of_reach(part: nn.Module) -> bool:
    """A replay would skip hooks, and the work for several devices at each call."""
    is_parallel = isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel)
    return is_parallel or any(vars(part).get(kind) for kind in HOOKS)
