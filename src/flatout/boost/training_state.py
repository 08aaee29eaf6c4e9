"""What training changes, as plain data: the weights and the state of each optimizer, and the other tensors of the models.

Optimizers and models are known by their order, which is the same in every trial of a script.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Copied = dict[str, Any]
_MOST_BESIDE = 50_000_000  # elements of weights without an optimizer: more is a frozen backbone, not an average


def can_be_copied(optimizer: torch.optim.Optimizer) -> bool:
    """An optimizer of the script's own may keep anything, anywhere."""
    state = (value for weight in weights_of(optimizer) for value in optimizer.state.get(weight, {}).values())
    return type(optimizer).__name__ != "LBFGS" and all(
        value is None or isinstance(value, Tensor | int | float) for value in state
    )


def weights_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def copy_of(optimizer: torch.optim.Optimizer) -> Copied:
    weights = weights_of(optimizer)
    state = [{key: _copy(value) for key, value in optimizer.state.get(weight, {}).items()} for weight in weights]
    return {"weights": [_copy(weight) for weight in weights], "state": state}


def put_back(copied: Copied, optimizer: torch.optim.Optimizer) -> None:
    """In place, and unseen by autograd: the script may hold a graph that uses these weights."""
    weights = weights_of(optimizer)
    if [weight.shape for weight in weights] != [known.shape for known in copied["weights"]]:
        raise ValueError("the optimizer has other weights than that of the unmodified script")
    for weight, known, wanted in zip(weights, copied["weights"], copied["state"], strict=True):
        weight.data.copy_(known)
        if not wanted:
            optimizer.state.pop(weight, None)
            continue
        state = optimizer.state[weight]
        for key in [key for key in state if key not in wanted]:
            del state[key]
        for key, value in wanted.items():
            mine = state.get(key)
            if isinstance(mine, Tensor) and isinstance(value, Tensor):
                mine.copy_(value)
            else:
                state[key] = value.to(weight.device, copy=True) if isinstance(value, Tensor) else value


def beside(models: Iterable[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Tensor]]:
    """The tensors of each model that no optimizer has: buffers, and weights that are averages of others."""
    taken = {id(weight) for optimizer in optimizers for weight in weights_of(optimizer)}
    found = []
    for model in models:
        averages = {name: weight.data for name, weight in model.named_parameters() if id(weight) not in taken}
        if sum(weight.numel() for weight in averages.values()) > _MOST_BESIDE:
            averages = {}
        found.append({**averages, **dict(model.named_buffers())})
    return found


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: _copy(tensor) for name, tensor in tensors.items()}


def put_tensors_back(copied: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if name in copied and copied[name].shape == tensor.shape:
            tensor.data.copy_(copied[name])


def _copy(value: Any) -> Any:
    """On the CPU, where it takes no memory that the script may need."""
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
