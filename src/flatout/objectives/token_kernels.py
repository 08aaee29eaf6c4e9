"""Kernels for losses over a vocabulary: one program per row, which reads the vocabulary in blocks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 2048, 4  # measured on an H200: larger blocks wait longer for their maximum
_BOTH_BLOCK, _BOTH_WARPS = 4096, 32  # few rows at a time, so that the second pass finds its row in the cache


def losses(logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    rows, columns = logits.shape
    loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(loss)
    _forward[(rows,)](logits, target, loss, sums, columns, ignore, BLOCK=_BLOCK, num_warps=_WARPS)
    return loss, sums


def gradients(logits: Tensor, target: Tensor, sums: Tensor, upstream: Tensor, ignore: int, gradient: Tensor) -> Tensor:
    """Written to `gradient`, which may be the logits themselves: each block is read before it is written."""
    rows, columns = logits.shape
    _backward[(rows,)](logits, target, sums, upstream, gradient, columns, ignore, BLOCK=_BLOCK, num_warps=_WARPS)
    return gradient


def losses_for_gradients(logits: Tensor, target: Tensor, ignore: int) -> Tensor:
    """The loss of each row; the gradients of their sum overwrite the logits."""
    rows, columns = logits.shape
    loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _both[(rows,)](logits, target, loss, columns, ignore, BLOCK=_BOTH_BLOCK, num_warps=_BOTH_WARPS)
    return loss


@triton.jit
def _forward(logits, target, loss, sums, columns, ignore, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # rows times columns may not fit into 32 bits
    logits += row * columns
    log_sum = _log_sum(logits, columns, BLOCK)
    wanted = tl.load(target + row)
    known = (wanted >= 0) & (wanted < columns)
    picked = tl.load(logits + wanted, mask=known, other=float("nan")).to(tl.float32)  # an unknown token gives NaN
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


@triton.jit
def _both(logits, target, loss, columns, ignore, BLOCK: tl.constexpr):
    """Uses powers of two and little arithmetic per logit, to stay limited by memory speed."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0).to(tl.int64)
    logits += row * columns
    at = tl.arange(0, BLOCK)
    first = tl.load(logits + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    # not the maximum, but close enough that the sum practically never overflows; finite, as below
    near = tl.maximum(tl.max(first, 0), -1e38) * LOG2_E
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < columns, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        sums += tl.exp2(value * LOG2_E - near)
    total = tl.sum(sums, 0)
    log_sum = near + tl.log2(total)
    if total == float("inf"):
        log_sum = _log_sum(logits, columns, BLOCK) * LOG2_E
    wanted = tl.load(target + row)
    counts = wanted != ignore
    known = (wanted >= 0) & (wanted < columns)
    picked = tl.load(logits + wanted, mask=known, other=float("nan")).to(tl.float32) * LOG2_E
    tl.store(loss + row, tl.where(counts, (log_sum - picked) / LOG2_E, 0.0))
    scale = tl.where(counts, log_sum, float("inf"))  # a row that does not count gets zeros
    tl.debug_barrier()  # all threads have read what one of them is about to overwrite
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < columns, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
        share = tl.exp2(value * LOG2_E - scale).to(logits.dtype.element_ty)
        tl.store(logits + at, share, mask=at < columns, eviction_policy="evict_first")
    tl.debug_barrier()
    tl.store(logits + wanted, (tl.exp2(picked - scale) - 1.0).to(logits.dtype.element_ty), mask=known & counts)


@triton.jit
def _log_sum(logits, columns, BLOCK: tl.constexpr):
    largest = -1e38  # finite, so that a block of only -inf does not give NaN
    total = 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(value, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(value - larger), 0)
        largest = larger
    return largest + tl.log(total)
