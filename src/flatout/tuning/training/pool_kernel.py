"""Max pooling whose windows do not overlap, as a Triton kernel for each direction.

Torch's own stores the place of each largest pixel in 8 bytes and gathers its gradient for each pixel: on an H200 the two
poolings of 64 small convnets took 8.3 of the 27 ms of a step. Here the backward kernel looks for the largest pixel again, and
writes each pixel once.

Import this only if Triton is installed.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor, nn

from flatout.tuning.training.memory_order import has_no_gaps

_BLOCK, _WARPS = 512, 4
_LARGEST_WINDOW = 16  # pixels, which a thread holds at once


def pool_by_kernel(model: nn.Module) -> list[str]:
    """Names of the poolings that are computed here from now on."""
    found = []
    for name, module in model.named_modules():
        if can_be_pooled(module):
            assert isinstance(module, nn.MaxPool2d)
            module.forward = _Pooling(_pair(module.kernel_size))  # type: ignore[method-assign,assignment]
            found.append(name)
    return found


def can_be_pooled(module: nn.Module) -> bool:
    if type(module) is not nn.MaxPool2d or module.return_indices or module.ceil_mode:
        return False
    size = _pair(module.kernel_size)
    return (
        _pair(module.stride) == size
        and _pair(module.padding) == (0, 0)
        and _pair(module.dilation) == (1, 1)
        and size[0] * size[1] <= _LARGEST_WINDOW
    )


class _Pooling:
    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size

    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor = _Pooled.apply(x, *self._size)  # type: ignore[no-untyped-call]
        return found


class _Pooled(torch.autograd.Function):
    """Of the last two axes; any number of others."""

    @staticmethod
    def forward(x: Tensor, high: int, wide: int) -> Tensor:
        x = _dense(x)
        made = _like(x, x.shape[-2] // high, x.shape[-1] // wide)
        _launch(_forward, made, x, made, made, high, wide)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.size = inputs[1:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        x = _dense(x)
        high, wide = ctx.size
        given = _like(x, *gradient.shape[-2:])
        if gradient.stride() == given.stride():
            given = gradient
        else:
            given.copy_(gradient)
        covered = x.shape[-2] % high == 0 and x.shape[-1] % wide == 0
        made = torch.empty_like(x) if covered else torch.zeros_like(x)
        _launch(_backward, given, x, given, made, high, wide)
        return made, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, high: int, wide: int) -> tuple[Tensor, int]:
        at = in_dims[0]
        if at >= x.ndim - 2:
            x, at = x.movedim(at, 0), 0
        found: Tensor = _Pooled.apply(x, high, wide)  # type: ignore[no-untyped-call]
        return found, at


def _dense(x: Tensor) -> Tensor:
    """Whose pixels lie row by row, each with `inner` numbers next to it, without gaps."""
    rows_follow = min(x.shape[-2:]) > 1 and x.stride(-2) == x.shape[-1] * x.stride(-1)
    return x if rows_follow and has_no_gaps(x) else x.clone(memory_format=torch.contiguous_format)


def _like(x: Tensor, rows: int, columns: int) -> Tensor:
    """An empty image of another size, in the same order of memory as `x`."""
    inner, plane = x.stride(-1), x.shape[-2] * x.shape[-1]
    strides = [one if one < inner or plane == 0 else one // plane * rows * columns for one in x.stride()[:-2]]
    return x.new_empty_strided((*x.shape[:-2], rows, columns), (*strides, columns * inner, inner))


def _launch(kernel: object, windows: Tensor, x: Tensor, given: Tensor, made: Tensor, high: int, wide: int) -> None:
    count = windows.numel()
    with torch.cuda.device(x.device) if x.device.type == "cuda" else nullcontext():
        if count:
            kernel[(triton.cdiv(count, _BLOCK),)](  # type: ignore[index]
                x, given, made, count, x.stride(-1), *x.shape[-2:], *windows.shape[-2:],
                HIGH=high, WIDE=wide, BLOCK=_BLOCK, num_warps=_WARPS,
            )  # fmt: skip


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def _first_pixel(window, inner, rows, columns, rows_out, columns_out, HIGH: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def,unused-ignore]
    lane = window % inner
    rest = window // inner
    column, rest = rest % columns_out, rest // columns_out
    row, plane = rest % rows_out, rest // rows_out
    return ((plane * rows + row * HIGH) * columns + column * WIDE) * inner + lane


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def _forward(  # type: ignore[no-untyped-def,unused-ignore]
    x, given, made, count, inner, rows, columns, rows_out, columns_out,
    HIGH: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    window = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = window < count
    first = x + _first_pixel(window, inner, rows, columns, rows_out, columns_out, HIGH, WIDE)
    largest = tl.load(first, mask=mask, other=0.0)
    for i in tl.static_range(HIGH):
        for j in tl.static_range(WIDE):
            value = tl.load(first + (i * columns + j) * inner, mask=mask, other=0.0)
            largest = tl.where((value > largest) | (value != value), value, largest)
    tl.store(made + window, largest, mask=mask)


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def _backward(  # type: ignore[no-untyped-def,unused-ignore]
    x, given, made, count, inner, rows, columns, rows_out, columns_out,
    HIGH: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    window = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = window < count
    place = _first_pixel(window, inner, rows, columns, rows_out, columns_out, HIGH, WIDE)
    first = x + place
    largest = tl.load(first, mask=mask, other=0.0)
    which = tl.zeros([BLOCK], tl.int32)
    for i in tl.static_range(HIGH):
        for j in tl.static_range(WIDE):
            value = tl.load(first + (i * columns + j) * inner, mask=mask, other=0.0)
            better = (value > largest) | (value != value)
            largest = tl.where(better, value, largest)
            which = tl.where(better, i * WIDE + j, which)
    gradient = tl.load(given + window, mask=mask, other=0.0)
    nothing = tl.zeros_like(gradient)
    for i in tl.static_range(HIGH):
        for j in tl.static_range(WIDE):
            tl.store(made + place + (i * columns + j) * inner, tl.where(which == i * WIDE + j, gradient, nothing), mask=mask)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
