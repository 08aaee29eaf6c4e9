"""The optimizer of a stack: AdamW, Adam or SGD where each trial has its own rate, decay, betas, momentum and clip.

The weights of a trial lie together in one row of a matrix, those that decay first. On a CPU torch's own fused kernel then
updates a whole row in one call, as it does in a run; elsewhere a few operations update all rows at once.
A step whose loss (or gradient norm) is not finite leaves that trial's weights and state unchanged, as in a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from flatout.base.specs import Spec
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.shared import Group


@dataclass(frozen=True)
class Part:
    """Columns of the matrix that share a decay and a factor of the rate."""

    start: int
    stop: int
    decays: bool
    factor: float


class Weights:
    """All trained parameters: `flat` is [trials, numbers], `leaves` are views of it by name, which gradients are taken of."""

    def __init__(self, flat: Tensor, shapes: Mapping[str, torch.Size], parts: Sequence[Part]) -> None:
        self.flat, self.shapes, self.parts = flat, dict(shapes), tuple(parts)
        sizes = [shape.numel() for shape in shapes.values()]
        columns = flat.split(sizes, dim=1)
        self.leaves = {
            name: piece.unflatten(1, shape).detach().requires_grad_() if shape else piece[:, 0].detach().requires_grad_()
            for (name, shape), piece in zip(shapes.items(), columns, strict=True)
        }

    @classmethod
    def of(cls, rows: Mapping[str, Tensor], rates: Mapping[str, float], device: torch.device) -> Weights:
        """`rows`: each parameter with a leading axis of trials. `rates`: factors of the learning rate by parameter."""

        def kind(name: str) -> tuple[bool, float]:
            return rows[name].ndim > 2, rates.get(name, 1.0)  # as in a run: matrices decay

        order = sorted(rows, key=lambda name: (not kind(name)[0], kind(name)[1]))
        flat = torch.cat([rows[name].flatten(1) for name in order], dim=1).to(device)
        ends, parts = [0], list[Part]()
        for name in order:
            ends.append(ends[-1] + rows[name][0].numel())
        for (start, stop), name in zip(pairwise(ends), order, strict=True):
            decays, factor = kind(name)
            if parts and (parts[-1].decays, parts[-1].factor) == (decays, factor):
                parts[-1] = Part(parts[-1].start, stop, decays, factor)
            else:
                parts.append(Part(start, stop, decays, factor))
        return cls(flat, {name: rows[name].shape[1:] for name in order}, parts)

    def picked(self, places: Tensor) -> Weights:
        return Weights(self.flat[places], self.shapes, self.parts)

    def row(self, matrix: Tensor, place: int) -> dict[str, Tensor]:
        """What a row of a matrix like `flat` holds, by parameter."""
        pieces = matrix[place].split([shape.numel() for shape in self.shapes.values()])
        return {name: piece.view(shape).clone() for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}


class StackedUpdate:
    def __init__(
        self, group: Group, weights: Weights, candidates: Sequence[TrialCandidate], state: Mapping[str, Tensor] | None = None
    ) -> None:
        self._group, self.weights = group, weights
        count, device = len(candidates), weights.flat.device
        kind = Spec.parse(group.recipe.optimizer)
        self.kind = kind.name
        self.nesterov = bool(kind.options.get("nesterov", False))
        names = ("first",) if kind.name == "sgd" else ("first", "second")
        self.state: dict[str, Tensor] = (
            dict(state)
            if state is not None
            else {**{name: torch.zeros_like(weights.flat) for name in names}, "count": torch.zeros(count, device=device)}
        )
        self.own = [one.own for one in candidates]
        clips = [math.inf if one.own.clip is None else one.own.clip for one in candidates]
        self._clip = torch.tensor(clips, device=device) if any(map(math.isfinite, clips)) else None
        self.gradient = torch.zeros_like(weights.flat)
        self._rows = _Rows(self) if device.type == "cpu" else _Columns(self)

    def picked(self, places: Tensor, weights: Weights, candidates: Sequence[TrialCandidate]) -> StackedUpdate:
        return StackedUpdate(self._group, weights, candidates, {name: one[places] for name, one in self.state.items()})

    @torch.no_grad()
    def __call__(self, losses: Tensor, gradients: Sequence[Tensor], rates: Tensor) -> None:
        torch.cat([one.flatten(1) if one.ndim > 1 else one[:, None] for one in gradients], dim=1, out=self.gradient)
        watched = losses
        if self._clip is not None:
            norms = torch.linalg.vector_norm(self.gradient, dim=1)
            clips = self._clip.isfinite()
            factors = (self._clip / (norms + 1e-6)).clamp_max(1.0)
            self.gradient.mul_(torch.where(clips, factors, 1.0)[:, None])
            watched = torch.where(clips, norms, losses)
        self._rows(torch.isfinite(watched), rates)


class _Rows:
    """Torch's fused kernels, a row at a time."""

    def __init__(self, update: StackedUpdate) -> None:
        self._update = update
        flat, parts = update.weights.flat, update.weights.parts
        self._skip = torch.zeros(len(flat))
        matrices = [flat, update.gradient, *(update.state[name] for name in ("first", "second") if name in update.state)]
        self._views = [[[one[row, part.start : part.stop] for one in matrices] for part in parts] for row in range(len(flat))]
        self._counts = list(update.state["count"].unbind())
        self._skips = list(self._skip.unbind())

    def __call__(self, finite: Tensor, rates: Tensor) -> None:
        update = self._update
        torch.logical_not(finite, out=self._skip)
        update.state["count"].add_(1).sub_(self._skip)
        for own, rate, views, count, skip in zip(
            update.own, rates.tolist(), self._views, self._counts, self._skips, strict=True
        ):
            for part, pieces in zip(update.weights.parts, views, strict=True):
                decay = own.weight_decay if part.decays else 0.0
                _row_update(update.kind, update.nesterov, pieces, count, skip, rate * part.factor, decay, own.options)


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


class _Columns:
    """All rows at once, by operations that any device has. Nothing waits for the device."""

    def __init__(self, update: StackedUpdate) -> None:
        self._update = update
        flat, device = update.weights.flat, update.weights.flat.device
        decays, factors = torch.zeros(flat.shape[1], device=device), torch.ones(flat.shape[1], device=device)
        for part in update.weights.parts:
            decays[part.start : part.stop], factors[part.start : part.stop] = float(part.decays), part.factor
        self._factors = None if bool((factors == 1).all()) else factors
        own = update.own
        self._decay = torch.tensor([one.weight_decay for one in own], device=device)[:, None] * decays
        options = [one.options for one in own]
        if update.kind == "sgd":
            self._momentum = torch.tensor([one["momentum"] for one in options], device=device)[:, None]
        else:
            self._betas = [torch.tensor([float(one["betas"][i]) for one in options], device=device)[:, None] for i in (0, 1)]
            self._eps = torch.tensor([one["eps"] for one in options], device=device)[:, None]

    def __call__(self, finite: Tensor, rates: Tensor) -> None:
        update = self._update
        weights, going = update.weights.flat, finite[:, None].to(update.weights.flat.dtype)
        gradient = update.gradient.masked_fill_(~finite[:, None], 0.0)
        lr = rates.to(weights.device, weights.dtype, non_blocking=True)[:, None] * going
        if self._factors is not None:
            lr = lr * self._factors
        update.state["count"].add_(going[:, 0])
        if update.kind == "sgd":
            self._sgd(weights, gradient, lr, going)
        else:
            self._adam(weights, gradient, lr, going)

    def _sgd(self, weights: Tensor, gradient: Tensor, lr: Tensor, going: Tensor) -> None:
        momentum = self._update.state["first"]
        gradient = gradient.addcmul(weights, self._decay * going)
        momentum.mul_(1 + (self._momentum - 1) * going).add_(gradient)
        step = gradient + self._momentum * momentum if self._update.nesterov else momentum
        weights.sub_(lr * step)

    def _adam(self, weights: Tensor, gradient: Tensor, lr: Tensor, going: Tensor) -> None:
        first, second, count = (self._update.state[name] for name in ("first", "second", "count"))
        beta1, beta2 = self._betas
        if self._update.kind == "adamw":
            weights.mul_(1 - lr * self._decay)
        else:
            gradient = gradient.addcmul(weights, self._decay * going)
        first.lerp_(gradient, (1 - beta1) * going)
        second.lerp_(gradient.square(), (1 - beta2) * going)
        counts = count[:, None].clamp_min(1)
        corrected = 1 - beta1**counts, 1 - beta2**counts
        denominator = second.sqrt().div_(corrected[1].sqrt()).add_(self._eps)
        weights.sub_(lr / corrected[0] * (first / denominator))
