"""Cross entropy over a large vocabulary, by torch's formula or by two kernels that read the logits once in each direction.

torch's version needs a float32 copy of all logits in eager mode (13 GB for 64 windows of GPT-2), and more time when compiled.
All forms compute in float32. Each returns the sum over the rows of logits [N, V] against target [N], without targets equal to
`ignore`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_HAS_TRITON = find_spec("triton") is not None
LARGE = 4096  # below this the logits are small, and a compiler fuses the formula with its neighbours


def has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and _HAS_TRITON


def token_loss(logits: Tensor, target: Tensor, ignore: int) -> Tensor:
    """In the form that needs the least memory."""
    fused = has_kernels(logits.device) and logits.shape[1] >= LARGE
    return fused_loss(logits, target, ignore) if fused else plain_loss(logits, target, ignore)


def plain_loss(logits: Tensor, target: Tensor, ignore: int) -> Tensor:
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(exact, target, reduction="sum", ignore_index=ignore)


def fused_loss(logits: Tensor, target: Tensor, ignore: int) -> Tensor:
    if logits.dtype == torch.float64:  # more precise than the kernels
        return plain_loss(logits, target, ignore)
    losses: Tensor = _losses(logits.contiguous(), target, ignore)[0]
    return losses.sum()


@torch.library.custom_op("flatout::token_losses", mutates_args=(), device_types="cuda")
def _losses(logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    """Per row: the loss, and the log of the sum of exponentials, which the backward pass needs."""
    from flatout.objectives.token_kernels import losses

    return losses(logits, target, ignore)


@torch.library.custom_op("flatout::token_gradients", mutates_args=(), device_types="cuda")
def _gradients(logits: Tensor, target: Tensor, sums: Tensor, upstream: Tensor, ignore: int) -> Tensor:
    from flatout.objectives.token_kernels import gradients

    return gradients(logits, target, sums, upstream, ignore, torch.empty_like(logits))


@_losses.register_fake
def _(logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    rows = logits.new_empty(len(logits), dtype=torch.float32)
    return rows, torch.empty_like(rows)


@_gradients.register_fake
def _(logits: Tensor, target: Tensor, sums: Tensor, upstream: Tensor, ignore: int) -> Tensor:
    return torch.empty_like(logits)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    logits, target, ctx.ignore = inputs
    ctx.save_for_backward(logits, target, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, upstream: Tensor, _sums: Tensor) -> tuple[Tensor, None, None]:
    logits, target, sums = ctx.saved_tensors
    return _gradients(logits, target, sums, upstream.contiguous(), ctx.ignore), None, None


_losses.register_autograd(_backward, setup_context=_keep)
