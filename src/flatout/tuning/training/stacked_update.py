"""The optimizer of a stack: AdamW, Adam or SGD where each trial has its own rate, decay, betas, momentum and clip.

A step whose loss (or gradient norm) is not finite leaves that trial's weights and state unchanged, as in a run. The form of the
update depends on the device: `UpdatedRows` on a CPU, `UpdatedByKernel` on CUDA devices with Triton, else `UpdatedColumns`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flatout.base.specs import Spec
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.own_kernels import why_no_kernels
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stacked_weights import Weights
from flatout.tuning.training.update_forms import UpdatedColumns, UpdatedRows, UpdateForm, UpdateRule


class StackedUpdate:
    def __init__(
        self, group: Group, weights: Weights, candidates: Sequence[TrialCandidate], state: Mapping[str, Tensor] | None = None
    ) -> None:
        self._group, self.weights = group, weights
        count, device = len(candidates), weights.flat.device
        kind = Spec.parse(group.recipe.optimizer)
        names = ("first",) if kind.name == "sgd" else ("first", "second")
        self.state: dict[str, Tensor] = (
            dict(state)
            if state is not None
            else {**{name: torch.zeros_like(weights.flat) for name in names}, "count": torch.zeros(count, device=device)}
        )
        clips = [math.inf if one.own.clip is None else one.own.clip for one in candidates]
        self._clip = torch.tensor(clips, device=device) if any(map(math.isfinite, clips)) else None
        rule = UpdateRule(kind.name, bool(kind.options.get("nesterov", False)), tuple(one.own for one in candidates))
        self._form, self.degraded = form_for(rule, weights, self.state)

    def picked(self, places: Tensor, weights: Weights, candidates: Sequence[TrialCandidate]) -> StackedUpdate:
        return StackedUpdate(self._group, weights, candidates, {name: one[places] for name, one in self.state.items()})

    @torch.no_grad()
    def __call__(self, losses: Tensor, gradients: Sequence[Tensor], rates: Tensor) -> None:
        self._form.take(gradients)
        watched, scale = losses, None
        if self._clip is not None:
            clips, norms = self._clip.isfinite(), self._form.norms()
            scale = torch.where(clips, (self._clip / (norms + 1e-6)).clamp_max(1.0), 1.0)
            watched = torch.where(clips, norms, losses)
        self._form(torch.isfinite(watched), rates, scale)

    def gradient_of(self, place: int) -> dict[str, Tensor]:
        """Of the last step, by parameter, clipped as it was applied."""
        return self._form.gradient_of(place)


def form_for(rule: UpdateRule, weights: Weights, state: Mapping[str, Tensor]) -> tuple[UpdateForm, str]:
    """And why it is not the fastest one of its device, in words; empty: it is."""
    device, why = weights.flat.device, ""
    if device.type == "cpu":
        return UpdatedRows(rule, weights, state), ""
    if device.type == "cuda" and weights.flat.dtype == torch.float32:
        why = why_no_kernels(device)
        if not why:
            try:
                return _kernel(rule, weights, state), ""
            except Exception as error:  # it is compiled here, by tools that may be missing or broken
                why = f"{type(error).__name__}: " + str(error).strip().partition("\n")[0]
    return UpdatedColumns(rule, weights, state), why and f"the update is not one kernel: {why}"


def _kernel(rule: UpdateRule, weights: Weights, state: Mapping[str, Tensor]) -> UpdateForm:
    from flatout.tuning.training.update_kernel import UpdatedByKernel

    form = UpdatedByKernel(rule, weights, state)
    form.rehearse(list(weights.leaves.values()))
    return form
