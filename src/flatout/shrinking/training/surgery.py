"""Cuts channels out of a model: the same places of every weight that makes or reads them. What stays is not changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from flatout.shrinking.training.widths import MODEL, Cut, Width


def cut(model: nn.Module, widths: Sequence[Width], kept: Mapping[str, Tensor]) -> nn.Module:
    """A copy of `model` in which each layer of `kept` has these channels only."""
    made = copy.deepcopy(model)
    modules = dict(made.named_modules())
    for width in widths:
        if width.layer in kept:
            for place in (*width.makers, *width.readers):
                _cut_one(modules, place, kept[width.layer])
    for module in modules.values():
        _say_sizes(module)
    return made


def _cut_one(modules: Mapping[str, nn.Module], place: Cut, kept: Tensor) -> None:
    layer, _, name = place.weight.removeprefix(MODEL).rpartition(".")
    module = modules[layer]
    tensor: Tensor = getattr(module, name)
    numbers = (kept[:, None] * place.block + torch.arange(place.block)).reshape(-1)
    made = tensor.detach().index_select(place.dim, numbers.to(tensor.device))
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        made = made.contiguous(memory_format=torch.channels_last)
    if isinstance(tensor, nn.Parameter):
        setattr(module, name, nn.Parameter(made, requires_grad=tensor.requires_grad))
    else:
        setattr(module, name, made)


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
    elif isinstance(module, nn.LayerNorm) and isinstance(module.weight, Tensor):
        module.normalized_shape = tuple(module.weight.shape)
