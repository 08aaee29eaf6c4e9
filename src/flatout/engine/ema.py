"""An exponential moving average of the weights; evaluation and the final model use it when the recipe asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flatout.store.tensors import local_part


class Average:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = [parameter.detach() for parameter in model.parameters()]
        self.average = [weight.clone() for weight in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(_here(self.average), _here(self._weights), 1 - self.decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights inside this context."""
        own = [weight.clone() for weight in self._weights]
        self._put(self.average)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(_here(self._weights), _here(values))


def _here(tensors: list[Tensor]) -> list[Tensor]:
    return [local_part(tensor) for tensor in tensors]
