"""Cuts channels out of a model: the same places of every weight that makes or reads them. What stays is not changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from flatout.shrinking.training.cuts import MODEL, Cut, Width


def cut(model: nn.Module, widths: Sequence[Width], kept: Mapping[str, Tensor]) -> nn.Module:
    """A copy of `model` in which each layer of `kept` has these channels only."""
    made = copy.deepcopy(model)
    modules = dict(made.named_modules())
    for width in widths:
        if width.layer in kept:
            # a table that is also the weight of the last layer is among both
            for place in dict.fromkeys((*width.makers, *width.readers)):
                _cut_one(modules, place, kept[width.layer])
    for module in modules.values():
        _say_sizes(module)
    return made


def _cut_one(modules: Mapping[str, nn.Module], place: Cut, kept: Tensor) -> None:
    layer, _, name = place.weight.removeprefix(MODEL).rpartition(".")
    module = modules[layer]
    tensor: Tensor = getattr(module, name)
    size = tensor.shape[place.dim] // (place.repeat * place.block)
    rows = torch.arange(place.repeat)[:, None, None] * size + kept[:, None]
    numbers = (rows * place.block + torch.arange(place.block)).reshape(-1)
    made = tensor.detach().index_select(place.dim, numbers.to(tensor.device))
    if place.queries:  # attention divides by the root of the new width
        made[: len(made) // place.queries] *= (len(kept) / size) ** 0.5
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        made = made.contiguous(memory_format=torch.channels_last)
    if not isinstance(tensor, nn.Parameter):
        setattr(module, name, made)
        return
    parameter = nn.Parameter(made, requires_grad=tensor.requires_grad)
    for other in modules.values():  # one parameter may have several owners
        for key in [key for key, one in other._parameters.items() if one is tensor]:
            setattr(other, key, parameter)


def _say_sizes(module: nn.Module) -> None:
    """The attributes that repeat the shape of the weights."""
    if isinstance(module, nn.Conv2d):
        if module.groups == module.in_channels and module.groups > 1:
            module.groups = module.in_channels = len(module.weight)
        else:
            module.in_channels = module.weight.shape[1] * module.groups
        module.out_channels = module.weight.shape[0]
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        if module.running_mean is not None:
            module.num_features = len(module.running_mean)
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = module.weight.shape
    elif isinstance(module, nn.LayerNorm) and isinstance(module.weight, Tensor):
        module.normalized_shape = tuple(module.weight.shape)
