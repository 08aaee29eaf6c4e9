"""torch's fused optimizer kernels, called without the Python around them.

The optimizer object keeps the groups and the state as torch lays them out; what is left out is the bookkeeping that its `step`
repeats every time, which for a small model takes longer than the kernel. All parameters share one step count (torch counts a
parameter that took no part in a step separately), and a flag on the device makes a step change nothing, so that skipping one
costs no wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from flatout.store.tensors import local_part


@dataclass(frozen=True)
class _Group:
    options: dict[str, Any]  # the optimizer's own group: the rate in it changes from step to step
    parameters: list[Tensor]
    first: list[Tensor]  # exp_avg, or the momentum
    second: list[Tensor]  # exp_avg_sq
    counts: list[Tensor]


class FusedUpdate:
    """One update of all parameters. `attach` again whenever the optimizer's state was loaded from elsewhere."""

    def __init__(self, optimizer: Optimizer, device: torch.device, *, compiled: bool = False) -> None:
        """`compiled`: the scalars around the update become one kernel. Pays in a CUDA graph, where calling it costs nothing."""
        self.skip = torch.zeros((), device=device)  # 1: leave everything as it is
        self._guard = torch.compile(_guard, dynamic=False) if compiled else _guard
        self._optimizer = optimizer
        self._count = torch.zeros((), device=device)
        self._kernel = _KERNELS[type(optimizer)]
        self._groups: list[_Group] = []
        self._parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        self.attach()

    def attach(self) -> None:
        """Make the state of a new optimizer, or take over what was loaded into it. May wait for the device."""
        self._groups = []
        counted = [state["step"] for state in self._optimizer.state.values() if "step" in state]
        if counted:
            self._count = counted[0] if counted[0].device == self.skip.device else counted[0].to(self.skip.device)
        for options in self._optimizer.param_groups:
            states = [self._state_of(parameter, options) for parameter in options["params"]]
            self._groups.append(
                _Group(
                    options,
                    [local_part(parameter.detach()) for parameter in options["params"]],
                    [local_part(state[name]) for state in states for name in ("exp_avg", "momentum_buffer") if name in state],
                    [local_part(state["exp_avg_sq"]) for state in states if "exp_avg_sq" in state],
                    [self._count] * len(states),
                )
            )

    @torch.no_grad()
    def __call__(self, watched: Tensor | None = None) -> None:
        """Nothing changes if `watched` is not finite; without it, if `skip` was set."""
        if watched is not None:
            self._guard(watched.detach(), self.skip, self._count)
        else:
            self._count.add_(1).sub_(self.skip)
        for group in self._groups:
            # a parameter that took no part in this batch has no gradient, and stays as it is
            gradients: list[Any] = [None if p.grad is None else local_part(p.grad) for p in group.options["params"]]
            if any(gradient is None for gradient in gradients):
                group, gradients = _with_gradients(group, gradients)
            if gradients:
                self._kernel(group, gradients, self.skip)

    def _state_of(self, parameter: Tensor, options: dict[str, Any]) -> dict[str, Tensor]:
        """As torch makes it in the first step: zeros. An SGD that starts from zeros keeps the first gradient as it is."""
        state = self._optimizer.state[parameter]
        if isinstance(self._optimizer, SGD):
            if options["momentum"] and not isinstance(state.get("momentum_buffer"), Tensor):
                state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            return {name: value for name, value in state.items() if isinstance(value, Tensor)}
        for name in ("exp_avg", "exp_avg_sq"):
            if name not in state:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["step"] = self._count
        return dict(state)


def _guard(watched: Tensor, skip: Tensor, count: Tensor) -> None:
    torch.ne(watched - watched, 0.0, out=skip)  # inf - inf and nan - nan are nan
    count.add_(1).sub_(skip)


def can_fuse(optimizer: Optimizer) -> bool:
    """Only what this module has a kernel for, asked to be fused."""
    if type(optimizer) not in _KERNELS:
        return False
    decoupled = isinstance(optimizer, AdamW)
    others = ("amsgrad", "maximize", "dampening", "differentiable")  # which only an optimizer of the user's own can have
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
