"""Replays a captured call: one launch for the forward pass, and one for the backward pass."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch import Tensor

from flatout.boost.remedies.graph_capture import Capture


class _Token:
    """Exists as long as a call may still get its backward pass."""


class Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, capture: Capture, count: int, *given: Tensor) -> tuple[Tensor, ...]:
        for place, tensor in zip(capture.inputs, given[:count], strict=True):
            place.copy_(tensor)
        capture.forward.replay()
        capture.replays += 1
        ctx.set_materialize_grads(False)
        ctx.capture, ctx.count, ctx.replay, ctx.token = capture, count, capture.replays, _Token()
        capture.in_use = ref(ctx.token)
        results = tuple(output.clone() for output in capture.outputs)  # the next replay overwrites the graph's outputs
        fixed = [result for result, learns in zip(results, capture.learns, strict=True) if not learns]
        ctx.mark_non_differentiable(*fixed)
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        capture: Capture = ctx.capture
        if ctx.replay != capture.replays:
            raise RuntimeError("backward was called again, but a later forward has overwritten the data it needs")
        if not _Back.retained:
            capture.in_use = None
        wanted = [one for one, learns in zip(gradients, capture.learns, strict=True) if learns]
        for place, gradient in zip(capture.going_in, wanted, strict=True):
            place.zero_() if gradient is None else place.copy_(gradient)
        capture.backward.replay()
        # copies, in one call: a script may keep, accumulate or scale its gradients
        there = [result for result in capture.coming_out if result is not None]
        copies = iter(torch._foreach_mul(there, 1.0) if there else ())
        results = [None if result is None else next(copies) for result in capture.coming_out]
        if capture.reach and any(gradient is None for gradient in wanted):
            # a weight that only unused outputs reach must have no gradient, not a zero gradient
            going = [reach for reach, gradient in zip(capture.reach, wanted, strict=True) if gradient is not None]
            results = [one if any(reach[at] for reach in going) else None for at, one in enumerate(results)]
        return None, None, *[None] * ctx.count, *results


def on_this_thread(original: Any) -> Any:
    """Runs backward on this thread: it is one launch, and handing it to autograd's thread would take longer."""
    noting = noting_what_stays(original, 2)

    def backward(*args: Any, **named: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return noting(*args, **named)

    return backward


class _Back:
    """Whether the running backward pass retains the graph for another one."""

    retained = False


def noting_what_stays(original: Any, at: int) -> Any:
    """`at`: index of the positional arguments retain_graph and create_graph."""

    def back(*args: Any, **named: Any) -> Any:
        was, given = _Back.retained, [*args[at : at + 2], named.get("retain_graph"), named.get("create_graph")]
        _Back.retained = any(given)
        try:
            return original(*args, **named)
        finally:
            _Back.retained = was

    return back
