"""Gradients, updates and buffers of the steps that are compared at one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from flatout.boost import training_state as state
from flatout.boost.plain_update import Named, gradient_of, plain_update
from flatout.measure.differences import StepSnapshot

_MOST_OF_A_BUFFER = 1_000_000  # elements; running statistics are small, tables and masks are not


class ComparedPlace:
    def __init__(self, at: int) -> None:
        self.at = at
        self.losses: list[Tensor] = []
        self.loss_dtype = "float32"
        self.gradients: dict[str, list[Tensor | None]] = {}
        self._updates: dict[str, list[Tensor]] = {}
        self._expected: dict[str, list[Tensor]] = {}
        self._before: dict[str, Tensor] = {}
        self._steps: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._noted: WeakKeyDictionary[torch.optim.Optimizer, tuple[Named, dict[str, Tensor]]] = WeakKeyDictionary()
        self._copied: WeakKeyDictionary[torch.optim.Optimizer, dict[str, Any]] = WeakKeyDictionary()
        self._buffers_before: dict[int, dict[str, Tensor]] = {}
        self._buffers: dict[str, Tensor] = {}

    def steps_of(self, optimizer: torch.optim.Optimizer) -> int:
        return self._steps.get(optimizer, 0)

    def is_noted(self, optimizer: torch.optim.Optimizer) -> bool:
        return optimizer in self._noted

    def note_loss(self, loss: Tensor) -> None:
        if not self.losses:
            self.loss_dtype = str(loss.dtype).removeprefix("torch.")
        self.losses.append(loss.detach().clone())

    def note_gradients(self, optimizer: torch.optim.Optimizer, weights: Named, *, undoes: bool) -> None:
        """`undoes`: the update is taken back when it is known."""
        if undoes and optimizer not in self._copied:
            self._copied[optimizer] = state.copy_of(optimizer)
        before = {name: weight.detach().float().clone() for name, weight in weights}
        for name, weight in weights:
            self._before.setdefault(name, before[name])
            self.gradients.setdefault(name, []).append(gradient_of(optimizer, weight))
        for name, update in plain_update(optimizer, weights).items():
            self._expected.setdefault(name, []).append(update)
        self._noted[optimizer] = weights, before

    def note_updates(self, optimizer: torch.optim.Optimizer) -> None:
        weights, before = self._noted.pop(optimizer)
        for name, weight in weights:
            if self.gradients[name][-1] is not None:
                self._updates.setdefault(name, []).append(weight.detach().float() - before[name])
        self._steps[optimizer] = self.steps_of(optimizer) + 1
        if optimizer in self._copied:
            state.put_back(self._copied[optimizer], optimizer)

    def note_buffers_before(self, number: int, model: nn.Module) -> None:
        """At the model's first call."""
        if number not in self._buffers_before:
            self._buffers_before[number] = state.copies(_buffers(model))

    def step_over(self, models: Sequence[nn.Module]) -> None:
        for number, before in self._buffers_before.items():
            found = _buffers(models[number])
            self._buffers |= {f"{name} of model {number}": _plain(buffer) for name, buffer in found.items()}
            self._before |= {
                f"{name} of model {number}": _plain(before[name].to(found[name].device)) for name in found if name in before
            }
            if any(self._copied):
                state.put_tensors_back(before, found)

    def snapshot(self) -> StepSnapshot:
        updates = {name: torch.stack(steps) for name, steps in self._updates.items()}
        expected = {name: torch.stack(steps) for name, steps in self._expected.items() if name in updates}
        expected |= {name: update.clone() for name, update in updates.items() if name not in expected}
        before = {
            name: weight.expand(len(updates[name]), *weight.shape) for name, weight in self._before.items() if name in updates
        }
        kept = {name: buffer for name, buffer in self._before.items() if name in self._buffers}
        losses = tuple(float(loss.float().mean()) for loss in self.losses)
        gradients = {name: _stacked(steps) for name, steps in self.gradients.items()}
        return StepSnapshot(
            losses, self.loss_dtype, 1.0, None, gradients, updates, expected, self._buffers, {**before, **kept}, stacked=True
        )


def _stacked(steps: Sequence[Tensor | None]) -> Tensor | None:
    """A batch may leave a weight without a gradient: an expert, a rare row."""
    known = next((step for step in steps if step is not None), None)
    return None if known is None else torch.stack([torch.zeros_like(known) if step is None else step for step in steps])


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in model.named_buffers() if buffer.numel() <= _MOST_OF_A_BUFFER}


def _plain(buffer: Tensor) -> Tensor:
    found = buffer.detach()
    return found.float().clone() if found.is_floating_point() else found.clone()
