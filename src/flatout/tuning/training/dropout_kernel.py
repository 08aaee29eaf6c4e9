"""`KeyedDropout` as one Triton kernel, forward and backward: the mask is computed again and never stored.

As operations of torch the hash moves about 300 bytes for each number that may be dropped. The kernel reads it and writes it:
4 bytes in bf16. (Computed from the formulas, not measured.)

Import this only if Triton is installed.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

_BLOCK, _WARPS = 2048, 4


def dropped(x: Tensor, key: Tensor, rate: Tensor) -> Tensor:
    """`x` of one trial, or under vmap of many, each with its key and its rate."""
    found: Tensor = _Dropped.apply(x, key, rate)  # type: ignore[no-untyped-call]
    return found


class _Dropped(torch.autograd.Function):
    """`key` and `rate` have one number, or one for each place on the first axis of `x`."""

    @staticmethod
    def forward(x: Tensor, key: Tensor, rate: Tensor) -> Tensor:
        return _launched(x, key, rate)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return _launched(gradient, *ctx.saved_tensors), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor) -> tuple[Tensor, int]:
        x, key, rate = (
            one.expand(info.batch_size, *one.shape) if dim is None else one.movedim(dim, 0)
            for one, dim in zip(given, in_dims, strict=True)
        )
        found: Tensor = _Dropped.apply(x, key, rate)  # type: ignore[no-untyped-call]
        return found, 0


def _launched(x: Tensor, key: Tensor, rate: Tensor) -> Tensor:
    x = x.contiguous()
    made = torch.empty_like(x)
    trials = key.numel()
    each = x.numel() // max(trials, 1)
    with torch.cuda.device(x.device) if x.device.type == "cuda" else nullcontext():
        if each:
            _kernel[triton.cdiv(each, _BLOCK), trials](
                x, made, key.contiguous(), rate.contiguous(), each, BLOCK=_BLOCK, num_warps=_WARPS
            )
    return made


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def _kernel(x, made, keys, rates, each, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,unused-ignore]
    trial = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < each
    rate = tl.load(rates + trial)
    h = at.to(tl.uint32) * 0x9E3779B1 + tl.load(keys + trial).to(tl.uint32)
    h = h ^ (h >> 16)
    h = h * 0x85EBCA6B
    h = h ^ (h >> 13)
    h = h * 0xC2B2AE35
    h = (h ^ (h >> 16)) >> 8
    kept = tl.where(h.to(tl.float32) >= rate * 16777216.0, 1.0, 0.0)
    place = trial.to(tl.int64) * each + at  # trials times numbers may not fit into 32 bits
    value = tl.load(x + place, mask=mask, other=0.0)
    share = tl.maximum(1.0 - rate, 1e-6).to(value.dtype).to(tl.float32)
    scale = (kept / share).to(value.dtype).to(tl.float32)  # rounded where the operations round
    tl.store(made + place, (value.to(tl.float32) * scale).to(value.dtype), mask=mask)
