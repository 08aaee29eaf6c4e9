"""Autocast for bf16, fp16 and the bf16 parts of fp8; the loss scale of fp16. Parameters and optimizer state stay in float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from flatout.machine import autocasting

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    if precision not in _AUTOCAST:
        return nullcontext()
    return autocasting.autocast(device.type, _AUTOCAST[precision])


class LossScale:
    """Dynamic loss scaling on the device: it never waits for the device, and works in a CUDA graph."""

    def __init__(self, device: torch.device, start: float = 2.0**16, growth_every: int = 2000) -> None:
        self.scale = torch.full((), start, device=device)
        self.growth = torch.zeros((), dtype=torch.int32, device=device)
        self._growth_every = growth_every

    def unscale(self, gradients: list[Tensor], found_inf: Tensor) -> None:
        """Divide the gradients by the scale; `found_inf` becomes 1 if any of them is not finite."""
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, self.scale.double().reciprocal().float())

    def update(self, found_inf: Tensor) -> None:
        torch._amp_update_scale_(self.scale, self.growth, found_inf, 2.0, 0.5, self._growth_every)

    def state(self) -> dict[str, Tensor]:
        return {"scale": self.scale, "growth": self.growth}
