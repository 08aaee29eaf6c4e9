"""Matrix products of linear layers in 8 bits, by torchao: each tensor is scaled to the range of 8 bits in every step.

Weights stay float32 under the same names, so checkpoints are the same; everything else is as with bf16. The head stays in bf16,
because the loss is computed from its output and 8 bits would be too coarse.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn

from flatout.base.errors import UsageError

_FIRST_CAPABILITY = (8, 9)
_MULTIPLE = 16  # the kernels need multiples of it for both sizes of a layer


def to_fp8(model: nn.Module, device: torch.device) -> int:
    """Converts linear layers in place; returns how many."""
    _check_device(device)
    float8 = _torchao()
    names = layers_to_turn(model)
    if not names:
        raise UsageError(
            f"precision=fp8: except for the head, no linear layer of the model has sizes that are multiples of {_MULTIPLE}: "
            "--set precision=bf16"
        )
    config = float8.Float8LinearConfig(pad_inner_dim=True)  # the last batch may have any number of rows
    float8.convert_to_float8_training(model, config=config, module_filter_fn=lambda module, name: name in names)
    return len(names)


def layers_to_turn(model: nn.Module) -> set[str]:
    """Names of linear layers with sizes that the kernels take, except the last one and those tied to an embedding."""
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    head = next(reversed(linear), None)
    return {
        name
        for name, module in linear.items()
        if type(module) is nn.Linear
        and name != head
        and id(module.weight) not in embedded
        and module.in_features % _MULTIPLE == 0
        and module.out_features % _MULTIPLE == 0
    }


def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        raise UsageError(f"precision=fp8 needs a CUDA device, the run is on {device.type}: --off precision")
    capability = torch.cuda.get_device_capability(device)
    if capability < _FIRST_CAPABILITY:
        needed, found = (".".join(map(str, version)) for version in (_FIRST_CAPABILITY, capability))
        raise UsageError(
            f"precision=fp8 needs a device of capability {needed} or more, this one has {found}: --set precision=bf16"
        )


def _torchao() -> Any:
    try:
        return import_module("torchao.float8")
    except ImportError as error:
        raise UsageError(f"precision=fp8 needs torchao ({error}): pip install torchao, or --set precision=bf16") from error
