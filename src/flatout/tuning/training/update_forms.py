"""How the rows of a stack are updated: by torch's fused kernel, a row at a time, or by operations on all rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout.tuning.training.candidate import OwnValues
from flatout.tuning.training.stacked_weights import Weights


@dataclass(frozen=True)
class UpdateRule:
    """`kind`: adamw, adam or sgd. `own`: the values of each trial."""

    kind: str
    nesterov: bool
    own: tuple[OwnValues, ...]

    def column(self, option: str, device: torch.device) -> Tensor:
        """A number of each trial, exact enough for 1 - beta."""
        return torch.tensor([float(one.options[option]) for one in self.own], dtype=torch.float64, device=device)

    def betas(self, device: torch.device) -> list[Tensor]:
        return [
            torch.tensor([float(one.options["betas"][i]) for one in self.own], dtype=torch.float64, device=device)
            for i in (0, 1)
        ]

    def decays(self, device: torch.device) -> Tensor:
        return torch.tensor([one.weight_decay for one in self.own], dtype=torch.float32, device=device)


class UpdateForm(Protocol):
    def take(self, gradients: Sequence[Tensor]) -> None:
        """Those of a step, of each leaf."""

    def norms(self) -> Tensor:
        """Of each trial, before the clip."""

    def __call__(self, finite: Tensor, rates: Tensor, scale: Tensor | None) -> None:
        """One step of each trial; those that are not `finite` stay as they are. `rates` are float64. `scale`: a number of each
        trial that its gradient is multiplied by."""

    def gradient_of(self, place: int) -> dict[str, Tensor]:
        """Of the last step, by parameter, clipped as it was applied."""


class _InOneMatrix:
    """Gradients are copied to a matrix like the one of the weights."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self._gradient = weights, torch.zeros_like(weights.flat)
        self._pieces = list(weights.views(self._gradient).values())

    def take(self, gradients: Sequence[Tensor]) -> None:
        for piece, one in zip(self._pieces, gradients, strict=True):
            piece.copy_(one)

    def norms(self) -> Tensor:
        found: Tensor = torch.linalg.vector_norm(self._gradient, dim=1)
        return found

    def gradient_of(self, place: int) -> dict[str, Tensor]:
        return self._weights.row(self._gradient, place)

    def _multiply(self, scale: Tensor | None) -> None:
        if scale is not None:
            self._gradient.mul_(scale[:, None])


class UpdatedRows(_InOneMatrix):
    """Torch's fused kernels, a row at a time: on a CPU as fast as a run's own update, which is the same kernel."""

    def __init__(self, rule: UpdateRule, weights: Weights, state: Mapping[str, Tensor]) -> None:
        super().__init__(weights)
        self._rule, self._parts = rule, weights.parts
        flat, self._count = weights.flat, state["count"]
        self._skip = torch.zeros(len(flat))
        matrices = [flat, self._gradient, *(state[name] for name in ("first", "second") if name in state)]
        self._views = [
            [[one[row, part.start : part.stop] for one in matrices] for part in self._parts] for row in range(len(flat))
        ]
        self._counts = list(self._count.unbind())
        self._skips = list(self._skip.unbind())

    def __call__(self, finite: Tensor, rates: Tensor, scale: Tensor | None) -> None:
        rule = self._rule
        self._multiply(scale)
        torch.logical_not(finite, out=self._skip)
        self._count.add_(1).sub_(self._skip)
        for own, rate, views, count, skip in zip(rule.own, rates.tolist(), self._views, self._counts, self._skips, strict=True):
            for part, pieces in zip(self._parts, views, strict=True):
                decay = own.weight_decay if part.decays else 0.0
                _row_update(rule.kind, rule.nesterov, pieces, count, skip, rate * part.factor, decay, own.options)


def _row_update(
    kind: str,
    nesterov: bool,
    pieces: list[Tensor],
    count: Tensor,
    skip: Tensor,
    lr: float,
    decay: float,
    options: Mapping[str, Any],
) -> None:
    if kind == "sgd":
        weights, gradient, momentum = pieces
        torch._fused_sgd_(
            [weights], [gradient], [momentum] if options["momentum"] else [],
            weight_decay=decay, momentum=options["momentum"], lr=lr, dampening=0.0, nesterov=nesterov, maximize=False,
            is_first_step=False, grad_scale=None, found_inf=skip,
        )  # fmt: skip
        return
    weights, gradient, first, second = pieces
    beta1, beta2 = options["betas"]
    kernel = torch._fused_adamw_ if kind == "adamw" else torch._fused_adam_
    kernel(
        [weights], [gradient], [first], [second], [], [count],
        lr=lr, beta1=beta1, beta2=beta2, weight_decay=decay, eps=options["eps"],
        amsgrad=False, maximize=False, grad_scale=None, found_inf=skip,
    )  # fmt: skip


class UpdatedColumns(_InOneMatrix):
    """All rows at once, by operations that any device has. Nothing waits for the device."""

    def __init__(self, rule: UpdateRule, weights: Weights, state: Mapping[str, Tensor]) -> None:
        super().__init__(weights)
        self._rule, self._flat, self._state = rule, weights.flat, state
        flat, device = weights.flat, weights.flat.device
        decays, factors = torch.zeros(flat.shape[1], device=device), torch.ones(flat.shape[1], device=device)
        for part in weights.parts:
            decays[part.start : part.stop], factors[part.start : part.stop] = float(part.decays), part.factor
        self._factors = None if bool((factors == 1).all()) else factors
        self._decay = rule.decays(device)[:, None] * decays
        if rule.kind == "sgd":
            self._momentum = rule.column("momentum", device).to(flat.dtype)[:, None]
        else:
            self._betas = [beta[:, None] for beta in rule.betas(device)]
            self._eps = rule.column("eps", device).to(flat.dtype)[:, None]

    def __call__(self, finite: Tensor, rates: Tensor, scale: Tensor | None) -> None:
        self._multiply(scale)
        weights, going = self._flat, finite[:, None].to(self._flat.dtype)
        gradient = self._gradient.masked_fill_(~finite[:, None], 0.0)
        lr = rates.to(weights.device, weights.dtype, non_blocking=True)[:, None] * going
        if self._factors is not None:
            lr = lr * self._factors
        self._state["count"].add_(going[:, 0])
        if self._rule.kind == "sgd":
            self._sgd(weights, gradient, lr, going)
        else:
            self._adam(weights, gradient, lr, going)

    def _sgd(self, weights: Tensor, gradient: Tensor, lr: Tensor, going: Tensor) -> None:
        momentum = self._state["first"]
        gradient = gradient.addcmul(weights, self._decay * going)
        momentum.mul_(1 + (self._momentum - 1) * going).add_(gradient)
        step = gradient + self._momentum * momentum if self._rule.nesterov else momentum
        weights.sub_(lr * step)

    def _adam(self, weights: Tensor, gradient: Tensor, lr: Tensor, going: Tensor) -> None:
        first, second, count = (self._state[name] for name in ("first", "second", "count"))
        if self._rule.kind == "adamw":
            weights.mul_(1 - lr * self._decay)
        else:
            gradient = gradient.addcmul(weights, self._decay * going)
        rests = [(1 - beta).to(weights.dtype) for beta in self._betas]
        first.lerp_(gradient, rests[0] * going)
        second.lerp_(gradient.square(), rests[1] * going)
        corrected = [(1 - beta ** count[:, None].clamp_min(1)).to(weights.dtype) for beta in self._betas]
        denominator = second.sqrt().div_(corrected[1].sqrt()).add_(self._eps)
        weights.sub_(lr / corrected[0] * (first / denominator))
