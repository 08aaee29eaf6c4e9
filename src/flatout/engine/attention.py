"""Which kernel computes scaled dot-product attention: one of torch's, put first in its list, or compiled flex attention.

torch compiles flex attention into one kernel together with the code around it. Replacing torch's function with a
`TorchFunctionMode` would break the graph at every tensor method that is written in Python. So the model has to offer a hook: an
attribute `attend` of a module, called like `F.scaled_dot_product_attention`, is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
_HOOK = "attend"


def attention_kernel(name: str) -> Callable[[], AbstractContextManager[Any]]:
    """Returns a context for the forward that prefers this kernel; the others stay for cases that it can't compute."""
    if name not in _KERNELS:
        return nullcontext
    first = _KERNELS[name]
    return partial(sdpa_kernel, [first, *(kernel for kernel in _KERNELS.values() if kernel != first)], set_priority=True)


def offers_hook(model: nn.Module) -> bool:
    return any(True for _ in _hooked(model))


def use_flex(model: nn.Module) -> int:
    """Makes all modules with the hook use flex attention; returns how many."""
    found = list(_hooked(model))
    for module in found:
        setattr(module, _HOOK, attend_flexibly)
    return len(found)


def attend_flexibly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Flex attention if it is causal or unmasked, without dropout, and being compiled; otherwise torch's own."""
    if attn_mask is not None or dropout_p or not _can_flex(query):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # inside the graph: one small kernel for any length
    blocks = create_block_mask(_past, None, None, query.shape[-2], key.shape[-2], query.device) if is_causal else None
    mixed: Any = flex_attention(query, key, value, block_mask=blocks, scale=scale, enable_gqa=enable_gqa)
    assert isinstance(mixed, Tensor)
    return mixed


def _past(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _can_flex(query: Tensor) -> bool:
    """Uncompiled flex attention holds all scores in memory; on a CPU it has no backward."""
    return torch.compiler.is_compiling() and (query.is_cuda or not (query.requires_grad and torch.is_grad_enabled()))


def _hooked(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if callable(getattr(module, _HOOK, None)))
