"""The first step of a script that changes its weights itself, without an optimizer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from flatout.boost.weight_names import WeightNames
from flatout.measure.differences import StepSnapshot


class StepByHand:
    def __init__(self, names: WeightNames) -> None:
        self._names = names
        self._weights: list[tuple[str, Tensor]] = []
        self._before: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor | None] = {}
        self._losses: list[Tensor] = []
        self._updates: dict[str, Tensor] = {}

    @property
    def is_noted(self) -> bool:
        return bool(self._weights)

    def after_backward(self, models: Sequence[nn.Module], losses: Sequence[Tensor]) -> None:
        """At every backward pass of the first step, because the update is only known afterwards."""
        ours = [weight for model in models for weight in model.parameters()]
        weights: list[tuple[str, Tensor]] = [
            (self._names.of(weight, f"weight 0.{at}"), weight) for at, weight in enumerate(ours)
        ]
        if not any(weight.grad is not None for _, weight in weights):
            return
        for name, weight in weights:  # each backward pass may add models
            if name not in self._before:
                self._before[name] = weight.detach().float().clone()
        self._weights, self._losses = weights, list(losses)
        self._gradients = {
            name: None if weight.grad is None else weight.grad.detach().float().clone() for name, weight in weights
        }

    def is_over(self) -> bool:
        """Have the weights changed?"""
        changed = {
            name: weight.detach().float() - self._before[name]
            for name, weight in self._weights
            if self._gradients[name] is not None
        }
        if any(bool(update.any()) for update in changed.values()):
            self._updates = changed
        return bool(self._updates)

    def snapshot(self, loss_dtype: str) -> StepSnapshot:
        losses = tuple(float(loss.float().mean()) for loss in self._losses)
        expected = {name: update.clone() for name, update in self._updates.items()}
        return StepSnapshot(losses, loss_dtype, 1.0, None, self._gradients, self._updates, expected, {}, self._before)
