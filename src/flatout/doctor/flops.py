"""FLOPs of an operator from the profiler's shapes: products, convolutions, attention, and their backward passes.

The profiler's own count omits the backward pass of convolutions and all of attention, counts additions of scalars, and warns
at every convolution whose padding is given by name. cuDNN's recurrent layers don't report their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

Shapes = Sequence[Sequence[int]]
Given = Sequence[Any]  # arguments; None in place of tensors


def flops_of(event: Any) -> float:
    """FLOPs of a kineto event; 0 for other operators, or if the event has no shapes."""
    count = _COUNTS.get(event.name())
    if count is None:
        return 0.0
    try:
        return count(event.shapes(), event.concrete_inputs())
    except (IndexError, TypeError, ValueError):
        return 0.0


def _product(first: int) -> Callable[[Shapes, Given], float]:
    """`first`: index of the left factor, (..., m, k); the next argument is (..., k, n)."""
    return lambda shapes, given: 2.0 * prod(shapes[first]) * shapes[first + 1][-1]


def _convolution(shapes: Shapes, given: Given) -> float:
    x, weight = shapes[0], shapes[1]
    stride, padding, dilation, transposed = given[3:7]
    if transposed:
        return 2.0 * prod(x) * prod(weight[1:])
    places = 1
    for at, (size, kernel) in enumerate(zip(x[2:], weight[2:], strict=True)):
        step, pad, wide = (one[at % len(one)] for one in (stride, padding, dilation))
        places *= (size + 2 * pad - wide * (kernel - 1) - 1) // step + 1
    return 2.0 * x[0] * places * prod(weight)


def _convolution_back(shapes: Shapes, given: Given) -> float:
    outcome, x, weight = shapes[:3]
    transposed, wanted = given[7], given[10]
    once = 2.0 * prod(x if transposed else outcome) * prod(weight[1:])
    return once * sum(map(bool, wanted[:2]))


def _attention(first: int, causal: int, times: float) -> Callable[[Shapes, Given], float]:
    """`first`: index of the queries, (..., n, d); keys and values follow. Causal attention computes half."""

    def count(shapes: Shapes, given: Given) -> float:
        queries, keys, values = shapes[first : first + 3]
        half = 0.5 if given[causal] is True else 1.0
        return times * half * 2.0 * prod(queries[:-1]) * keys[-2] * (queries[-1] + values[-1])

    return count


def _recurrent(times: float) -> Callable[[Shapes, Given], float]:
    """oneDNN's layer: for each position of the input a product with each of its two matrices, and two in the backward pass."""
    return lambda shapes, given: times * 2.0 * prod(shapes[0][:-1]) * (prod(shapes[1]) + prod(shapes[2]))


_COUNTS: dict[str, Callable[[Shapes, Given], float]] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::_scaled_mm": _product(0),
    "aten::addmm": _product(1),
    "aten::_addmm_activation": _product(1),
    "aten::baddbmm": _product(1),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_back,
    "aten::mkldnn_rnn_layer": _recurrent(1.0),
    "aten::mkldnn_rnn_layer_backward": _recurrent(2.0),
    "aten::_scaled_dot_product_flash_attention": _attention(0, 4, 1.0),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(0, 4, 1.0),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6, 1.0),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6, 1.0),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 11, 2.0),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, 7, 2.0),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, 11, 2.0),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, 14, 2.0),
}
