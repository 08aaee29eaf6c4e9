"""The projection to the vocabulary and its loss as one operation, on all rows at once or in parts.

The forward pass also computes the gradients, in the memory of the logits: one part is finished before the logits of the next
part are computed. The backward pass only scales. In parts, all logits never exist at once; with all rows at once, they are read
from memory once and need no second tensor for their gradient. Products use the dtype of autocast, sums over parts float32.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.objectives.token_loss import has_kernels

_PART_BYTES = 512 * 2**20  # of logits; each part adds one pass over the weight's whole gradient
_ROWS_STEP = 128  # matrix kernels work best with multiples of this


class HasHead(Protocol):
    """A model whose output is `head(hidden(...))`; `hidden` takes the arguments of forward, `head` is like an nn.Linear.

    A head that does not use its `weight` and `bias` directly has a method `projection` that returns both.
    """

    head: Any

    def hidden(self, *given: Any, **named: Any) -> Tensor: ...


def lacks_head(model: nn.Module) -> str | None:
    """What the model lacks for a loss in parts, as text. `hidden` must be a method: a layer of that name does not count."""
    if not isinstance(getattr(model, "hidden", None), MethodType):
        return "a method hidden(...) that takes the arguments of forward and returns the input of the head"
    weight = getattr(getattr(model, "head", None), "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return "a layer head, like an nn.Linear, that turns the output of hidden(...) into logits"
    return None


def projection_of(head: Any) -> tuple[Tensor, Tensor | None]:
    weight, bias = head.projection() if hasattr(head, "projection") else (head.weight, getattr(head, "bias", None))
    return weight, bias


def joined_loss(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore: int) -> Tensor:
    """Like `chunked_loss`, in one part."""
    return chunked_loss(hidden, weight, bias, target, ignore, max(len(hidden), 1))


def chunked_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore: int, rows_at_once: int | None = None
) -> Tensor:
    """Summed loss of hidden [N, width] @ weight [V, width].T + bias [V] against target [N], skipping `ignore`."""
    dtype = _product_dtype(hidden)
    rows = rows_at_once or max(_ROWS_STEP, _PART_BYTES // (weight.shape[0] * dtype.itemsize) // _ROWS_STEP * _ROWS_STEP)
    learns = bias is not None and bias.requires_grad
    loss: Tensor = _in_parts(hidden, weight, bias, target, ignore, dtype, rows, weight.requires_grad, learns)[0]
    return loss


def _product_dtype(hidden: Tensor) -> torch.dtype:
    kind = hidden.device.type
    if hidden.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return hidden.dtype
    return torch.get_autocast_dtype(kind)


@torch.library.custom_op("flatout::chunked_token_loss", mutates_args=())
def _in_parts(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore: int,
    dtype: torch.dtype,
    rows: int,
    weight_learns: bool,
    bias_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and its gradients for hidden, weight and bias; empty for those that need none."""
    loss, by_hidden, by_weight, by_bias = _blank(hidden, weight, dtype, weight_learns, bias_learns)
    with torch.autocast(hidden.device.type, enabled=False):
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        for start in range(0, len(hidden), rows):
            part = hidden[start : start + rows].to(dtype)
            part_loss, gradient = _loss_and_gradient(F.linear(part, weight, bias), target[start : start + rows], ignore)
            loss += part_loss
            torch.mm(gradient, weight, out=by_hidden[start : start + rows])
            if weight_learns:
                _add_product(by_weight, gradient.t(), part, first=start == 0)
            if bias_learns:
                by_bias += gradient.sum(0, dtype=by_bias.dtype)
            del gradient  # before the logits of the next part are allocated
    return loss, by_hidden, by_weight, by_bias


@_in_parts.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore: int,
    dtype: torch.dtype,
    rows: int,
    weight_learns: bool,
    bias_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _blank(hidden, weight, dtype, weight_learns, bias_learns)


def _blank(
    hidden: Tensor, weight: Tensor, dtype: torch.dtype, weight_learns: bool, bias_learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    exact = torch.promote_types(dtype, torch.float32)
    by_weight = weight.new_zeros(weight.shape if weight_learns else (0,), dtype=exact)
    by_bias = weight.new_zeros(weight.shape[0] if bias_learns else 0, dtype=exact)
    return hidden.new_zeros((), dtype=exact), hidden.new_empty(hidden.shape, dtype=dtype), by_weight, by_bias


def _loss_and_gradient(logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    """The gradient may use the memory of the logits."""
    if has_kernels(logits.device) and logits.dtype != torch.float64:
        from flatout.objectives.token_kernels import losses_for_gradients

        return losses_for_gradients(logits, target, ignore).sum(), logits
    logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
    total = F.nll_loss(logs, target, reduction="sum", ignore_index=ignore)
    counts = target != ignore
    place = target.where(counts, 0)[:, None]
    shares = logs.exp_()
    shares.scatter_(1, place, shares.gather(1, place) - 1)
    return total, shares.mul_(counts[:, None]).to(logits.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor, *, first: bool) -> None:
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif left.is_cuda and first:  # saves a pass that would add to zeros
        torch.mm(left, right, out_dtype=total.dtype, out=total)
    elif left.is_cuda:
        total += torch.mm(left, right, out_dtype=total.dtype)  # keeps the accumulator's precision
    else:
        total += torch.mm(left, right)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, bias, *_, ctx.weight_learns, ctx.bias_learns = inputs
    ctx.dtypes = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Any, ...]:
    by_hidden, by_weight, by_bias = ctx.saved_tensors
    of_hidden, of_weight, of_bias = ctx.dtypes
    return (
        by_hidden.to(of_hidden) * upstream,
        (by_weight * upstream).to(of_weight) if ctx.weight_learns else None,
        (by_bias * upstream).to(of_bias) if ctx.bias_learns else None,
        *[None] * 6,
    )


_in_parts.register_autograd(_backward, setup_context=_keep)
