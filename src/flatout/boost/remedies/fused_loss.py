"""Cross entropy over a large vocabulary, with its logits read once in each direction.

torch writes the log-probabilities of all classes and reads them again in the backward pass, in half precision after a copy in
float32. On a GPU two kernels do without either. On a CPU the gradient is computed together with the loss, a few rows at a
time, while they are in the processor's cache.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.plain_calls import is_plain
from flatout.boost.remedies.remedy import Offer, Remedy
from flatout.doctor.case import Case
from flatout.doctor.diagnosis import Diagnosis
from flatout.measure.counts import Call, TensorLayout
from flatout.objectives.token_loss import fused_loss, has_kernels

_CLASSES = 4096
_LEAST = 2**20  # logits
_PART_BYTES = 2**20  # of logits in float32
_SPENT = ("aten::_log_softmax", "aten::nll_loss_forward", "aten::nll_loss_backward", "aten::_log_softmax_backward_data")
_SAVED, _WORTH = 0.5, 0.02  # share of that time; least share of a step


class FusedLoss(Remedy):
    name = "fused_loss"

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        if any(call.compiled for call in case.training_calls) or not any(map(_is_wide, _products(case))):
            return []
        if case.on_device and not has_kernels(case.device):
            return []
        share = min(_SAVED * case.share(_loss_ms(case)), _SAVED)
        return [Offer(self.name, "on", "off", 1 / (1 - share))] if share >= _WORTH else []

    def apply(self, value: Any, hooks: Hooks) -> None:
        hooks.patches.wrap(F, "cross_entropy", _fused)


def _products(case: Case) -> list[Call]:
    return [one.call for one in case.trace.operations if one.call is not None]


def _is_wide(call: Call) -> bool:
    shapes = [one.shape for one in call.given if isinstance(one, TensorLayout)]
    return any(len(shape) == 2 and shape[-1] >= _CLASSES for shape in shapes)


def _loss_ms(case: Case) -> float:
    if case.on_device:
        spans = [(one.start, one.end) for one in case.trace.device if "LogSoftMax" in one.name or "nll_loss" in one.name]
    else:
        spans = [(one.start, one.end) for one in case.trace.host if one.name in _SPENT]
    return case.ms(sum(end - start for start, end in spans))


def _fused(original: Any) -> Any:
    def cross_entropy(
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        usual = weight is None and size_average is None and reduce is None and not label_smoothing
        if usual and reduction in ("mean", "sum") and _is_ours(input, target):
            logits = input if input.ndim == 2 else input.transpose(1, 2).flatten(0, 1)
            return _loss(logits, target.flatten(), ignore_index, reduction == "mean")
        return original(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)

    return cross_entropy


def _is_ours(logits: Tensor, target: Tensor) -> bool:
    if not is_plain(logits, target):
        return False
    if logits.ndim not in (2, 3) or target.dtype != torch.int64 or target.device != logits.device:
        return False
    if logits.shape[:1] + logits.shape[2:] != target.shape or not logits.requires_grad or not torch.is_grad_enabled():
        return False
    if logits.ndim == 3 and not logits.transpose(1, 2).is_contiguous():  # [batch, classes, places]
        return False
    is_large = logits.shape[1] >= _CLASSES and logits.numel() >= _LEAST
    is_here = logits.device.type == "cpu" or has_kernels(logits.device)
    return is_large and is_here and logits.dtype in (torch.float32, torch.bfloat16, torch.float16)


def _loss(logits: Tensor, target: Tensor, ignore: int, mean: bool) -> Tensor:
    dtype = torch.float32 if torch.is_autocast_enabled(logits.device.type) else logits.dtype
    if logits.device.type == "cpu":
        loss: Tensor = _InParts.apply(logits, target, ignore, mean)  # type: ignore[no-untyped-call]
    else:
        loss = fused_loss(logits, target, ignore)
        loss = loss / (target != ignore).sum() if mean else loss
    return loss.to(dtype)


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ignore: int, mean: bool) -> Tensor:
        counts = target != ignore
        scale = 1 / int(counts.sum()) if mean and bool(counts.any()) else 1.0
        gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
        rows = max(1, torch.get_num_threads(), _PART_BYTES // (4 * logits.shape[1]))
        shares = torch.empty(min(rows, len(logits)), logits.shape[1])
        losses = torch.empty(len(logits))
        for start in range(0, len(logits), rows):
            part, wanted, counted = (one[start : start + rows] for one in (logits, target, counts))
            place, share, exact = wanted.where(counted, 0)[:, None], shares[: len(part)], part.float()
            torch.softmax(exact, 1, out=share)
            # the largest share is far from 0, so its logarithm is exact
            log_sum = exact.amax(1) - share.amax(1).log()
            losses[start : start + rows] = log_sum - exact.gather(1, place).squeeze(1)
            share.scatter_add_(1, place, torch.full_like(place, -1, dtype=torch.float32))
            torch.mul(share, counted[:, None] * scale, out=gradient[start : start + rows])
        ctx.save_for_backward(gradient)
        total = losses.where(counts, 0.0).sum()
        if not mean:
            return total
        return total * scale if bool(counts.any()) else total / 0.0  # NaN, as torch's

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        by = float(upstream)
        return gradient if by == 1.0 else gradient * by, None, None, None
