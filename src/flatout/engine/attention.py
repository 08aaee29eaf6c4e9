"""Which kernel computes scaled dot-product attention: one of torch's own, put first in its list, or a compiled one.

Flex attention is a program that torch compiles into one kernel with what surrounds it. A `TorchFunctionMode` that put it in the
place of torch's function would end the graph at every method of a tensor that is written in Python, so it is the model that
lends a hand: a module with an attribute `attend`, a function called as `F.scaled_dot_product_attention` is, gets another one.
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
    """Makes the context in which a forward has that kernel first; the others stay, for what it can't do."""
    if name not in _KERNELS:
        return nullcontext
    first = _KERNELS[name]
    return partial(sdpa_kernel, [first, *(kernel for kernel in _KERNELS.values() if kernel != first)], set_priority=True)


def offers_hook(model: nn.Module) -> bool:
    return any(True for _ in _hooked(model))


def use_flex(model: nn.Module) -> int:
    """Returns how many of its modules attend so from now on."""
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
    """Causal or unmasked attention without dropout, in a step that is being compiled; any other as torch does it."""
    if attn_mask is not None or dropout_p or not _can_flex(query):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # made within the graph: one small kernel, whatever the length
    blocks = create_block_mask(_past, None, None, query.shape[-2], key.shape[-2], query.device) if is_causal else None
    mixed: Any = flex_attention(query, key, value, block_mask=blocks, scale=scale, enable_gqa=enable_gqa)
    assert isinstance(mixed, Tensor)
    return mixed


def _past(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _can_flex(query: Tensor) -> bool:
    """Uncompiled it would hold every score at once; on a CPU torch has no backward of it."""
    return torch.compiler.is_compiling() and (query.is_cuda or not (query.requires_grad and torch.is_grad_enabled()))


def _hooked(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if callable(getattr(module, _HOOK, None)))
