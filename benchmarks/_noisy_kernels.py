"""A machine whose kernels never repeat themselves: adds noise to what layers compute, forward and backward.

As a GPU does it, in size: sums in any order differ by about 1e-6 of a result's typical element; other algorithms, or products
in TF32, by up to 5e-4. The noise is drawn anew in each process, from a generator of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LAYERS = ("conv2d", "conv_transpose2d", "linear")
_drawn: dict[int, torch.Generator] = {}


def _generator() -> torch.Generator:
    if os.getpid() not in _drawn:
        _drawn[os.getpid()] = torch.Generator("cpu").manual_seed(int.from_bytes(os.urandom(7)))
    return _drawn[os.getpid()]


def _noisy(tensor: Tensor, size: float) -> Tensor:
    typical = tensor.detach().float().square().mean().sqrt()
    drawn = torch.randn(tensor.shape, generator=_generator(), device="cpu").to(tensor.device)
    return tensor + (size * typical * drawn).to(tensor.dtype)


class _NoisyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, size: float) -> Tensor:
        ctx.size = size
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _noisy(gradients[0], ctx.size), None


def _around(layer: Callable[..., Tensor], size: float) -> Callable[..., Tensor]:
    def noisy(*args: Any, **named: Any) -> Tensor:
        changed = [
            _NoisyGradient.apply(one, size)  # type: ignore[no-untyped-call]
            if isinstance(one, Tensor) and one.requires_grad
            else one
            for one in args
        ]
        return _noisy(layer(*changed, **named), size)

    return noisy


def install(size: float) -> None:
    """For this process and all that it forks."""
    for name in _LAYERS:
        setattr(F, name, _around(getattr(F, name), size))
    lstm = torch._VF.lstm

    def noisy_lstm(*args: Any, **named: Any) -> Any:
        found, *states = lstm(*args, **named)
        return _noisy(found, size), *states

    torch._VF.lstm = noisy_lstm
