"""The script's matrix products and convolutions, in a form that can be called again to time alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from flatout.measure.counts import Call, Operation, TensorLayout
from flatout.measure.groups import CONVOLUTIONS, PRODUCTS

aten = torch.ops.aten

_AGAIN = {
    "aten::convolution": (aten.convolution.default, CONVOLUTIONS),
    "aten::convolution_backward": (aten.convolution_backward.default, CONVOLUTIONS),
    "aten::mm": (aten.mm.default, PRODUCTS),
    "aten::bmm": (aten.bmm.default, PRODUCTS),
    "aten::addmm": (aten.addmm.default, PRODUCTS),
    "aten::baddbmm": (aten.baddbmm.default, PRODUCTS),
}
_DTYPES = {"float": torch.float32, "c10::BFloat16": torch.bfloat16, "c10::Half": torch.float16, "double": torch.float64}


class Called:
    """Collects operations, each once, however often the script called it."""

    def __init__(self) -> None:
        self._known: dict[str, Operation | None] = {}
        self.operations: list[Operation] = []

    def add(self, event: Any, flops: float) -> None:
        """`event`: from kineto."""
        name = event.name()
        if name not in _AGAIN:
            return
        shapes, dtypes, given = event.shapes(), event.dtypes(), event.concrete_inputs()
        asked = repr((name, shapes, dtypes, given))
        if asked not in self._known:
            self._known[asked] = _operation(name, shapes, dtypes, given, flops)
        if (found := self._known[asked]) is not None:
            self.operations.append(found)


def _operation(
    name: str, shapes: Sequence[Sequence[int]], dtypes: Sequence[str], given: Sequence[Any], flops: float
) -> Operation | None:
    """None if one of its inputs is not a plain tensor of numbers."""
    func, group = _AGAIN[name]
    arguments = func._schema.arguments
    if not len(shapes) == len(dtypes) == len(given) <= len(arguments):
        return None
    placed: list[Any] = []
    for argument, shape, dtype, value in zip(arguments, shapes, dtypes, given, strict=False):
        if "Tensor" not in str(argument.type) or (not shape and not dtype):
            placed.append(value)
        elif dtype in _DTYPES:
            placed.append(TensorLayout(tuple(shape), _contiguous(shape), _DTYPES[dtype]))
        else:
            return None
    by_place = sum(not argument.kwarg_only for argument in arguments)
    named = {argument.name: value for argument, value in zip(arguments[by_place:], placed[by_place:], strict=False)}
    call = Call(func, tuple(placed[:by_place]), named)
    computes_with = next(one.dtype for one in placed if isinstance(one, TensorLayout))
    return Operation(name, group, computes_with, int(flops), (), (), key=call.key, call=call)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Contiguous strides. The profiler reports no strides, so the layout of convolutions is taken from the model's calls."""
    return tuple(prod(shape[place + 1 :]) for place in range(len(shape)))
