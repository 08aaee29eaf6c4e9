"""Convolutions as products of matrices: the pixels under the kernel are copied next to each other, the rest is one product.

In a stack the convolution of each trial becomes a group of one large convolution, which libraries compute slowly where a trial
has few channels; a product of matrices becomes a batch of products, which they compute well. Copying the pixels costs memory
and time. Which of both is faster is measured. The channels lie last in memory, for the copy and for what follows.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUPED, UNFOLDED = "grouped", "unfolded"

Pair = tuple[int, int]


def unfold_convolutions(model: nn.Module) -> list[str]:
    """Names of the convolutions that are computed by products from now on. Their parameters keep their names."""
    found = []
    for name, module in model.named_modules():
        if can_be_unfolded(module):
            assert isinstance(module, nn.Conv2d)
            module._conv_forward = _Unfolded(module)  # type: ignore[method-assign,assignment]
            found.append(name)
    return found


def convolution_forms(model: nn.Module) -> tuple[str, ...]:
    """In which a stack of this model can be computed."""
    return (GROUPED, UNFOLDED) if any(map(can_be_unfolded, model.modules())) else (GROUPED,)


def can_be_unfolded(module: nn.Module) -> bool:
    return type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros"


class _Unfolded:
    """What `nn.Conv2d` calls with its input, weight and bias."""

    def __init__(self, like: nn.Conv2d) -> None:
        self._size, self._stride, self._dilation = _pair(like.kernel_size), _pair(like.stride), _pair(like.dilation)
        self._padding = _padding(like, self._size, self._dilation)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if x.ndim == 3:  # one image
            return self(x[None], weight, bias)[0]
        padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, *self._padding))
        pixels = _pixels(padded, self._size, self._stride, self._dilation)
        count, high, wide = pixels.shape[:3]
        pixels = pixels.reshape(count * high * wide, -1)
        made = pixels @ weight.permute(2, 3, 1, 0).flatten(0, 2)
        if bias is not None:
            made = made + bias.to(made.dtype)
        images: Tensor = made.unflatten(0, (count, high, wide)).permute(0, 3, 1, 2)
        return images


class _Pixels(torch.autograd.Function):
    """[..., height, width, channels] to [..., rows, columns, kernel height, kernel width, channels].

    Its gradient adds what each place of the kernel contributes: torch's own `unfold_backward` took half of a step on a CPU.
    """

    @staticmethod
    def forward(x: Tensor, size: Pair, stride: Pair, dilation: Pair) -> Tensor:
        windows = x
        for dim in (0, 1):
            reach = dilation[dim] * (size[dim] - 1) + 1
            windows = windows.unfold(x.ndim - 3 + dim, reach, stride[dim])[..., :: dilation[dim]]
        return windows.movedim(x.ndim - 1, -1).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, *ctx.given = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        size, stride, dilation = ctx.given
        found = gradient.new_zeros(ctx.shape)
        rows, columns = gradient.shape[-5:-3]
        for i, j in product(range(size[0]), range(size[1])):
            down, right = _every(i * dilation[0], rows, stride[0]), _every(j * dilation[1], columns, stride[1])
            found[..., down, right, :].add_(gradient[..., i, j, :])
        return found, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, *given: Pair) -> tuple[Tensor, int]:
        return _pixels(x.movedim(in_dims[0], 0), *given), 0


def _pixels(x: Tensor, size: Pair, stride: Pair, dilation: Pair) -> Tensor:
    found: Tensor = _Pixels.apply(x, size, stride, dilation)  # type: ignore[no-untyped-call]
    return found


def _every(start: int, count: int, stride: int) -> slice:
    return slice(start, start + (count - 1) * stride + 1, stride)


def _pair(size: tuple[int, ...]) -> Pair:
    return size[0], size[1]


def _padding(like: nn.Conv2d, size: Pair, dilation: Pair) -> tuple[int, int, int, int]:
    """Left, right, above, below."""
    if like.padding == "same":
        whole = [each * (one - 1) for one, each in zip(size, dilation, strict=True)]
        return whole[1] // 2, whole[1] - whole[1] // 2, whole[0] // 2, whole[0] - whole[0] // 2
    if isinstance(like.padding, str):  # valid
        return 0, 0, 0, 0
    return like.padding[1], like.padding[1], like.padding[0], like.padding[0]
