"""Which group of operations an operator belongs to, by its name and tags."""

from __future__ import annotations

from typing import Any

import torch

PRODUCTS = "matrix products"
CONVOLUTIONS = "convolutions"
ATTENTION = "attention"
NORMALISATION = "normalisation"
ELEMENTWISE = "element by element"
LOSS = "loss"
UPDATE = "optimizer update"
MOVEMENT = "data movement"
OTHER = "other"
GROUPS = (PRODUCTS, CONVOLUTIONS, ATTENTION, NORMALISATION, ELEMENTWISE, LOSS, UPDATE, MOVEMENT, OTHER)

_NORMS = ("layer_norm", "batch_norm", "group_norm", "rms_norm", "instance_norm")
_LOSSES = ("_loss", "log_softmax", "cross_entropy", "kl_div", "flatout::token_")
_MOVES = ("copy", "clone", "cat", "stack", "embedding", "index", "gather", "scatter", "pad", "zero", "ones", "fill", "roll")
_RANDOM = ("dropout", "bernoulli", "uniform", "normal_", "rand")


def group_of(func: Any, flops: int) -> str:
    """`func` is a torch operator. An operator with FLOPs is a convolution, attention or a matrix product."""
    name = func.name()
    if "attention" in name:
        return ATTENTION
    if flops:
        return CONVOLUTIONS if "conv" in name else PRODUCTS
    if _any_in(_NORMS, name):
        return NORMALISATION
    if _any_in(_LOSSES, name):
        return LOSS
    if _any_in(_MOVES, name):
        return MOVEMENT
    if torch.Tag.pointwise in func.tags or _any_in(_RANDOM, name):
        return ELEMENTWISE
    return OTHER


def _any_in(parts: tuple[str, ...], name: str) -> bool:
    return any(part in name for part in parts)
