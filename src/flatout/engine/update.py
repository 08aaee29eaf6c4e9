"""Gradients become weights: unscaled, clipped, applied where the step went well, averaged. Nothing waits for the device.

A step whose loss (or gradient norm) is not finite leaves weights and optimizer as they were: the fused kernel reads that flag
on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.base.errors import UsageError
from flatout.engine.ema import Average
from flatout.engine.fused import FusedUpdate, can_fuse
from flatout.engine.offload import HostOptimizer
from flatout.engine.phases import NoPhases, Phases
from flatout.engine.precision import LossScale
from flatout.engine.settings import Settings

Clip = Callable[[], Tensor]  # scales all gradients by one factor; returns what their norm was


class Update:
    def __init__(
        self,
        optimizer: Optimizer | HostOptimizer,
        parameters: list[nn.Parameter],
        settings: Settings,
        scale: LossScale | None,
        *,
        clip: Clip | None = None,
        average: Average | None = None,
    ) -> None:
        self.optimizer: Any = optimizer  # torch's own interface; a HostOptimizer is stepped as a guarded update alone
        self.rate = 0.0
        # groups of one factor share the tensor that a graph reads its rate from
        self.device_rates = {g["factor"]: g["lr"] for g in optimizer.param_groups if isinstance(g["lr"], Tensor)}
        self.phases: Phases = NoPhases()
        self._parameters, self._scale, self._clip, self._average = parameters, scale, clip, average
        self._device = torch.device(settings.device)
        self._skip = torch.zeros((), device=self._device)
        self._guarded = self._made(compiled=settings.graph and settings.compile != "off")
        if scale is not None and not isinstance(self._guarded, FusedUpdate):
            raise UsageError(
                "precision=fp16 needs a fused AdamW, Adam or SGD, which can skip a step whose gradients overflow: "
                "--set fused_optimizer=on and --off optimizer_offload, or --set precision=bf16"
            )

    def __call__(self, loss: Tensor) -> Tensor | None:
        """Returns the norm of the gradients, where they are clipped."""
        norm = None
        if self._scale is not None:
            self._skip.zero_()
            self._scale.unscale([p.grad for p in self._parameters if p.grad is not None], self._skip)
        if self._clip is not None:
            norm = self._clip()
        if self._guarded is not None:
            self._guarded(None if self._scale is not None else loss if norm is None else norm)
        else:
            self.optimizer.step()
        if self._scale is not None:
            self._scale.update(self._skip)
        if self._average is not None:
            self._average.update()
        self.phases.mark("optimizer")
        return norm

    def set_rate(self, lr: float) -> None:
        if lr == self.rate:
            return
        self.rate = lr
        for group in self.optimizer.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = lr * group.get("factor", 1.0)
        for factor, rate in self.device_rates.items():
            rate.fill_(lr * factor)

    def state_loaded(self) -> None:
        """Call after the optimizer's state was loaded."""
        if self._guarded is not None:
            self._guarded.attach()

    def go_eager(self) -> None:
        """Nothing of it is compiled any more."""
        self._guarded = self._made(compiled=False)

    def _made(self, *, compiled: bool) -> GuardedUpdate | None:
        made = guarded_update(self.optimizer, self._device, compiled=compiled)
        if isinstance(made, FusedUpdate):
            self._skip = made.skip
        return made


class GuardedUpdate(Protocol):
    def __call__(self, watched: Tensor | None = None) -> None: ...
    def attach(self) -> None: ...


def guarded_update(
    optimizer: Optimizer | HostOptimizer, device: torch.device, *, compiled: bool = False
) -> GuardedUpdate | None:
    """An update that leaves everything as it is where a step went wrong. None: this optimizer can't."""
    if isinstance(optimizer, HostOptimizer):
        return optimizer
    return FusedUpdate(optimizer, device, compiled=compiled) if can_fuse(optimizer) else None


def trained_by(optimizer: Optimizer | HostOptimizer) -> list[nn.Parameter]:
    """The model's own parameters."""
    if isinstance(optimizer, HostOptimizer):
        return optimizer.parameters
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
