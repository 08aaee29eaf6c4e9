"""One kernel for attention that a script writes as `softmax(q @ k.T) @ v`."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.attention_scores import NAME, as_plain, of_einsum, of_product
from flatout.boost.remedies.plain_calls import is_plain
from flatout.boost.remedies.remedy import Offer, Remedy
from flatout.doctor.case import Case
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.gains import GainComparison, Pair, Way, gain_key
from flatout.machine.optimisations import Optimisation
from flatout.measure.counts import Call

_SOFTMAX = ("aten::_softmax", "aten::_softmax_backward_data")
_OF_SOFTMAX = 3.0  # times the softmax: its products, scaling and masks on a device, where their kernels have common names
_USUAL, _WORTH = 1.7, 0.02  # speed-up if it can't be measured; least share of a step
_WIDEST = 512
_ATTENTION = Optimisation(NAME, "fused attention")


class FusedAttention(Remedy):
    name = NAME

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        counts = case.trace.counts
        by_hand = counts.get(_SOFTMAX[1], 0) and counts.get(_SOFTMAX[0], 0) > counts.get("aten::_safe_softmax", 0)
        products = _products(case)
        if not by_hand or not products or any(call.compiled for call in case.training_calls):
            return []
        share = min(case.share(_attention_ms(case)), 1.0)
        if share < _WORTH:
            return []
        gain = case.gains.measured(_comparison(case.device, *products[0]), case.device) or _USUAL
        return [Offer(self.name, "on", "off", 1 / (1 - share * (1 - 1 / gain)))]

    def apply(self, value: Any, hooks: Hooks) -> None:
        for owner, name in (
            (torch, "matmul"), (Tensor, "matmul"), (Tensor, "__matmul__"), (torch, "bmm"), (Tensor, "bmm"),
        ):  # fmt: skip
            hooks.patches.wrap(owner, name, _noting)
        hooks.patches.wrap(torch, "baddbmm", _noting_sum)
        hooks.patches.wrap(torch, "einsum", _noting_einsum)


def _products(case: Case) -> list[tuple[Call, torch.dtype]]:
    """Of queries and keys, the largest first."""
    found = [
        (one.call, one.dtype)
        for one in case.trace.operations
        if one.call is not None and one.name == "aten::bmm" and _has_scores(one.call)
    ]
    return sorted(found, key=lambda one: -prod(one[0].given[0].shape) * one[0].given[1].shape[2])


def _has_scores(call: Call) -> bool:
    """[heads, rows, width] by [heads, width, keys]"""
    (_, rows, width), (_, _, keys) = (one.shape for one in call.given[:2])
    return bool(width <= min(_WIDEST, rows, keys) and rows == keys)


def _comparison(device: torch.device, call: Call, dtype: torch.dtype) -> GainComparison:
    (heads, rows, width), (_, _, keys) = (one.shape for one in call.given[:2])

    def ready(device: torch.device, numbers: torch.Generator) -> tuple[Way, Way]:
        q, k, v = (
            torch.randn(1, heads, length, width, generator=numbers, device=device).to(dtype).requires_grad_()
            for length in (rows, keys, keys)
        )

        def learned(attention: Callable[[], Tensor]) -> Way:
            def once() -> None:
                with torch.enable_grad():
                    torch.autograd.grad(attention().sum(), (q, k, v))

            return once

        by_hand = learned(lambda: (q @ k.mT * 0.1).masked_fill(hidden, -math.inf).softmax(-1) @ v)
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=device).triu(1)
        return by_hand, learned(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden))

    key = gain_key(_ATTENTION, device, f"{heads} heads of {rows}x{keys}x{width} in {dtype}")
    return GainComparison(key, (Pair(24.0 * heads * rows * keys, 1.0, ready),))


def _attention_ms(case: Case) -> float:
    if case.on_device:
        names = {one.name: one.name.lower() for one in case.trace.device}
        ours = {name for name, lower in names.items() if "softmax" in lower and "logsoftmax" not in lower}
        spans = [(one.start, one.end) for one in case.trace.device if one.name in ours]
        return _OF_SOFTMAX * case.ms(sum(end - start for start, end in spans))
    return case.ms(sum(one.end - one.start for one in case.trace.host if one.name in (*_SOFTMAX, "aten::bmm")))


def _noting(original: Any) -> Any:
    @as_plain(original)
    def product(*args: Any, **named: Any) -> Any:
        if not named and len(args) == 2 and is_plain(*args) and args[0].ndim > 2 and args[1].ndim > 2:
            return of_product(original, args, {}, args[0], args[1].transpose(-2, -1))
        return None

    return product


def _noting_sum(original: Any) -> Any:
    @as_plain(original)
    def baddbmm(*args: Any, **named: Any) -> Any:
        if len(args) == 3 and is_plain(*args) and args[1].ndim == args[2].ndim == 3:
            return of_product(original, args, named, args[1], args[2].transpose(-2, -1))
        return None

    return baddbmm


def _noting_einsum(original: Any) -> Any:
    @as_plain(original)
    def einsum(*args: Any, **named: Any) -> Any:
        if not named and len(args) == 3 and isinstance(args[0], str) and is_plain(*args[1:]):
            return of_einsum(original, args)
        return None

    return einsum
