"""The two kernels of `token_loss`: a program for each row, which walks over the vocabulary in blocks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 2048, 4  # measured on an H200: larger blocks wait longer for their own maximum


def losses(logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    rows, columns = logits.shape
    loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(loss)
    _forward[(rows,)](logits, target, loss, sums, columns, ignore, BLOCK=_BLOCK, num_warps=_WARPS)
    return loss, sums


def gradients(logits: Tensor, target: Tensor, sums: Tensor, upstream: Tensor, ignore: int, gradient: Tensor) -> Tensor:
    """Written to `gradient`, which may be the logits themselves: a block is read before it is written."""
    rows, columns = logits.shape
    _backward[(rows,)](logits, target, sums, upstream, gradient, columns, ignore, BLOCK=_BLOCK, num_warps=_WARPS)
    return gradient


@triton.jit
def _forward(logits, target, loss, sums, columns, ignore, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # rows times columns may not fit 32 bits
    logits += row * columns
    largest = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(value, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(value - larger), 0)
        largest = larger
    log_sum = largest + tl.log(total)
    wanted = tl.load(target + row)
    known = (wanted >= 0) & (wanted < columns)
    picked = tl.load(logits + wanted, mask=known, other=float("nan")).to(tl.float32)  # no such token: no such loss
    tl.store(sums + row, log_sum)
    tl.store(loss + row, tl.where(wanted == ignore, 0.0, log_sum - picked))


@triton.jit
def _backward(logits, target, sums, upstream, gradient, columns, ignore, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * columns
    gradient += row * columns
    wanted = tl.load(target + row)
    log_sum = tl.load(sums + row)
    weight = tl.where(wanted == ignore, 0.0, tl.load(upstream + row))
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        share = (tl.exp(value - log_sum) - tl.where(at == wanted, 1.0, 0.0)) * weight
        tl.store(gradient + at, share.to(gradient.dtype.element_ty), mask=at < columns)
