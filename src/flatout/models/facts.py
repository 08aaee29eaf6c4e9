"""Facts about a model from its module types, which decide which settings may be tried."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd


def parameter_count(model: nn.Module) -> int:
    """Number of trained and frozen values; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def has_batch_norm(model: nn.Module) -> bool:
    """Whether the rows of a batch interact: then splitting a batch changes the result."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def has_dropout(model: nn.Module) -> bool:
    return any(_drop_rate(module) > 0 for module in model.modules())


def has_convolution(model: nn.Module) -> bool:
    return any(isinstance(module, _ConvNd) for module in model.modules())


def _drop_rate(module: nn.Module) -> float:
    if isinstance(module, _DropoutNd):
        return module.p
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return float(module.dropout)
    return 0.0
