"""Flattens the arguments of a call, and decides which calls can share a CUDA graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from flatout.boost.remedies.model_state import SIMPLE


def flattened(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], Any]:
    """The leaves of a call and its structure. Avoids the slow `tree_flatten` for plain tensors and numbers."""
    leaves = [*args, *named.values()]
    if all(isinstance(leaf, Tensor) or type(leaf) in SIMPLE for leaf in leaves):
        return leaves, (len(args), *named)
    return tree_flatten((args, named))


def rebuilt(leaves: list[Any], form: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(form, tuple):
        return tuple(leaves[: form[0]]), dict(zip(form[1:], leaves[form[0] :], strict=True))
    args, named = tree_unflatten(leaves, form)
    return args, named


def key_of(leaves: list[Any], form: Any) -> Any:
    """None if the call can't be replayed: a graph reads from fixed device memory and computes gradients of weights only."""
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
