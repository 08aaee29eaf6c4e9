"""Gradients become weights: unscaled, clipped, applied if the step went well, averaged. Nothing waits for the device.

A step whose loss (or gradient norm) is not finite leaves weights and optimizer unchanged: torch's fused optimizer kernels read
that flag on the device. They are called here without the Python code of `Optimizer.step`, which takes longer than the kernel
for a small model. The optimizer object keeps the groups and the state in torch's layout. All parameters that started to train
together share one step count (torch counts separately for a parameter that had no gradient in a step).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from flatout.base.errors import UsageError
from flatout.engine.ema import Average
from flatout.engine.precision import LossScale
from flatout.engine.records import NoPhases, Phases
from flatout.engine.settings import Settings
from flatout.store.tensors import local_part

Clip = Callable[[], Tensor]  # scales all gradients by one factor; returns their norm before that


class Update:
    def __init__(
        self,
        optimizer: Optimizer | SteppingElsewhere,
        parameters: list[nn.Parameter],
        settings: Settings,
        scale: LossScale | None,
        *,
        clip: Clip | None = None,
        average: Average | None = None,
    ) -> None:
        self.optimizer: Any = optimizer  # torch's own interface, except for `SteppingElsewhere`
        self.rate = 0.0
        # groups with the same factor share one rate tensor, which a graph reads
        self.device_rates = {g["factor"]: g["lr"] for g in optimizer.param_groups if isinstance(g["lr"], Tensor)}
        self.phases: Phases = NoPhases()
        self._parameters, self._scale, self._clip, self._average = parameters, scale, clip, average
        self._device = torch.device(settings.device)
        self._skip = torch.zeros((), device=self._device)
        self._guarded = self._made(compiled=settings.graph and settings.compile != "off")
        if scale is not None and not isinstance(self._guarded, FusedUpdate):
            raise UsageError(
                "precision=fp16 needs a fused AdamW, Adam or SGD, which skips steps whose gradients overflow: "
                "--set fused_optimizer=on and --off optimizer_offload, or --set precision=bf16"
            )

    def __call__(self, loss: Tensor) -> Tensor | None:
        """Returns the gradient norm if gradients are clipped."""
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
        """Call after loading the optimizer's state."""
        if self._guarded is not None:
            self._guarded.attach()

    def go_eager(self) -> None:
        """Stop using compiled code."""
        self._guarded = self._made(compiled=False)

    def _made(self, *, compiled: bool) -> GuardedUpdate | None:
        made = guarded_update(self.optimizer, self._device, compiled=compiled)
        if isinstance(made, FusedUpdate):
            self._skip = made.skip
        return made


class GuardedUpdate(Protocol):
    def __call__(self, watched: Tensor | None = None) -> None: ...
    def attach(self) -> None: ...


class SteppingElsewhere(GuardedUpdate, Protocol):
    """An optimizer over copies of the model's parameters; an update also changes the parameters themselves."""

    parameters: list[nn.Parameter]

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...


def guarded_update(
    optimizer: Optimizer | SteppingElsewhere, device: torch.device, *, compiled: bool = False
) -> GuardedUpdate | None:
    """An update that changes nothing if the step's loss or norm is not finite. None: this optimizer can't do that."""
    if not isinstance(optimizer, Optimizer):
        return optimizer
    return FusedUpdate(optimizer, device, compiled=compiled) if can_fuse(optimizer) else None


def trained_by(optimizer: Optimizer | SteppingElsewhere) -> list[nn.Parameter]:
    """The model's own parameters."""
    if not isinstance(optimizer, Optimizer):
        return optimizer.parameters
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# ---- the fused kernels ----


@dataclass(frozen=True)
class _Group:
    options: dict[str, Any]  # the optimizer's group, whose rate changes from step to step
    parameters: list[Tensor]
    first: list[Tensor]  # exp_avg, or the momentum
    second: list[Tensor]  # exp_avg_sq
    counts: list[Tensor]


class FusedUpdate:
    """One update of all parameters. Call `attach` again after loading the optimizer's state."""

    def __init__(self, optimizer: Optimizer, device: torch.device, *, compiled: bool = False) -> None:
        """`compiled`: fuse the scalar operations into one kernel. Faster only in a CUDA graph, where calls cost nothing."""
        self.skip = torch.zeros((), device=device)  # 1: change nothing
        self._guard = torch.compile(_guard, dynamic=False) if compiled else _guard
        self._optimizer = optimizer
        self._counts: dict[int, Tensor] = {
            group.get("stage", 0): torch.zeros((), device=device) for group in optimizer.param_groups
        }
        self._kernel = _KERNELS[type(optimizer)]
        self._groups: list[_Group] = []
        self._parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        self.attach()

    def attach(self) -> None:
        """Create the state of a new optimizer, or use the loaded one. May wait for the device."""
        self._groups, loaded = [], set[int]()
        for options in self._optimizer.param_groups:
            stage, state = options.get("stage", 0), self._optimizer.state
            counts = [state[one]["step"] for one in options["params"] if one in state and "step" in state[one]]
            if counts and stage not in loaded:
                loaded.add(stage)
                self._counts[stage] = counts[0].to(self.skip.device)
            states = [self._state_of(parameter, options) for parameter in options["params"]]
            self._groups.append(
                _Group(
                    options,
                    [local_part(parameter.detach()) for parameter in options["params"]],
                    [local_part(state[name]) for state in states for name in ("exp_avg", "momentum_buffer") if name in state],
                    [local_part(state["exp_avg_sq"]) for state in states if "exp_avg_sq" in state],
                    [self._counts[options.get("stage", 0)]] * len(states),
                )
            )

    @torch.no_grad()
    def __call__(self, watched: Tensor | None = None) -> None:
        """Nothing changes if `watched` is not finite; without it, if `skip` was set."""
        if watched is not None:
            self._guard(watched.detach(), self.skip, *self._counts.values())
        else:
            for count in self._counts.values():
                count.add_(1).sub_(self.skip)
        for group in self._groups:
            # a parameter without a gradient in this batch does not change
            gradients: list[Any] = [None if p.grad is None else local_part(p.grad) for p in group.options["params"]]
            if any(gradient is None for gradient in gradients):
                group, gradients = _with_gradients(group, gradients)
            if gradients:
                self._kernel(group, gradients, self.skip)

    def _state_of(self, parameter: Tensor, options: dict[str, Any]) -> dict[str, Tensor]:
        """Zeros, as torch creates it in the first step. SGD that starts from zeros uses the first gradient unchanged."""
        state = self._optimizer.state[parameter]
        if isinstance(self._optimizer, SGD):
            if options["momentum"] and not isinstance(state.get("momentum_buffer"), Tensor):
                state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            return {name: value for name, value in state.items() if isinstance(value, Tensor)}
        for name in ("exp_avg", "exp_avg_sq"):
            if name not in state:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["step"] = self._counts[options.get("stage", 0)]
        return dict(state)


def _guard(watched: Tensor, skip: Tensor, *counts: Tensor) -> None:
    torch.ne(watched - watched, 0.0, out=skip)  # inf - inf and nan - nan are nan
    for count in counts:
        count.add_(1).sub_(skip)


def can_fuse(optimizer: Optimizer) -> bool:
    """Whether this module has a kernel for the optimizer, and its groups ask for fused."""
    if type(optimizer) not in _KERNELS:
        return False
    decoupled = isinstance(optimizer, AdamW)
    others = ("amsgrad", "maximize", "dampening", "differentiable")  # only an optimizer made by the user can have these
    return all(
        group["fused"] and group.get("decoupled_weight_decay", False) is decoupled and not any(map(group.get, others))
        for group in optimizer.param_groups
    )


def _with_gradients(group: _Group, gradients: list[Any]) -> tuple[_Group, list[Tensor]]:
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]

    def of(values: list[Tensor]) -> list[Tensor]:
        return [values[i] for i in present] if values else values

    kept = _Group(group.options, of(group.parameters), of(group.first), of(group.second), of(group.counts))
    return kept, [gradients[i] for i in present]


def _adam(kernel: Callable[..., None]) -> Callable[[_Group, list[Tensor], Tensor], None]:
    def update(group: _Group, gradients: list[Tensor], skip: Tensor) -> None:
        options = group.options
        beta1, beta2 = options["betas"]
        kernel(
            group.parameters, gradients, group.first, group.second, [], group.counts,
            lr=options["lr"], beta1=beta1, beta2=beta2, weight_decay=options["weight_decay"], eps=options["eps"],
            amsgrad=False, maximize=False, grad_scale=None, found_inf=skip,
        )  # fmt: skip

    return update


def _sgd(group: _Group, gradients: list[Tensor], skip: Tensor) -> None:
    options = group.options
    torch._fused_sgd_(
        group.parameters, gradients, group.first,
        weight_decay=options["weight_decay"], momentum=options["momentum"], lr=options["lr"], dampening=0.0,
        nesterov=options["nesterov"], maximize=False, is_first_step=False, grad_scale=None, found_inf=skip,
    )  # fmt: skip


_KERNELS: dict[type[Optimizer], Callable[[_Group, list[Tensor], Tensor], None]] = {
    AdamW: _adam(torch._fused_adamw_),
    Adam: _adam(torch._fused_adam_),
    SGD: _sgd,
}
