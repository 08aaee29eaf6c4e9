"""An exponential moving average of the weights; evaluation and the final model use it when the recipe asks for one.

If weights are spread over processes, each process averages its own parts, without communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flatout.base.errors import StoreError
from flatout.store.tensors import local_part


class Average:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = [parameter.detach() for parameter in model.parameters()]
        self.average = [weight.clone() for weight in self._weights]
        places = {id(parameter): place for place, parameter in enumerate(model.parameters())}
        self._places = {name: places[id(one)] for name, one in model.named_parameters(remove_duplicate=False)}

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

    def by_name(self) -> dict[str, Tensor]:
        """For a checkpoint, by name: positions in a list differ between processes that have only some of the weights.

        A tied weight appears under each of its names, because another process may know only one of them.
        """
        return {name: self.average[place] for name, place in self._places.items()}

    @torch.no_grad()
    def restore(self, kept: Mapping[str, Tensor] | Sequence[Tensor] | None) -> None:
        """From the result of `by_name`, or from a list in the model's order, as in older checkpoints."""
        if kept is None:
            raise StoreError("the checkpoint has no average of the weights, which the recipe asks for: start anew with --fresh")
        listed = list(kept) if not isinstance(kept, Mapping) else self._in_order(kept)
        found = [local_part(tensor) for tensor in listed]
        for place, (here, there) in enumerate(zip(_here(self.average), found, strict=True)):
            if here.shape != there.shape:
                shapes = f"{list(there.shape)} in the checkpoint and {list(here.shape)} here"
                raise StoreError(f"the average of weight {place} is {shapes}: it does not fit; start a new run with --fresh")
        torch._foreach_copy_(_here(self.average), [tensor.to(self.average[0].device) for tensor in found])

    def _in_order(self, kept: Mapping[str, Tensor]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for name, place in self._places.items():
            if name in kept:
                found.setdefault(place, kept[name])
        missing = [name for name, place in self._places.items() if place not in found]
        if missing:
            raise StoreError(f"the checkpoint has no average of {', '.join(missing[:3])}: it does not fit the model")
        return [found[place] for place in range(len(self.average))]

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(_here(self._weights), _here(values))


def _here(tensors: list[Tensor]) -> list[Tensor]:
    return [local_part(tensor) for tensor in tensors]
