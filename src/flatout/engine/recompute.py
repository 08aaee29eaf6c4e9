"""Activation checkpointing: the repeated blocks of a model forget their activations and compute them again in the backward."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_blocks(model: nn.Module) -> int:
    """Wrap the children of every list of like modules; returns how many were wrapped."""
    wrapped = 0
    for module in model.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        children = [child for child in module if any(True for _ in child.parameters())]
        like = [child for child in children if type(child) is type(children[0]) and any(True for _ in child.children())]
        if len(like) < 2:
            continue
        for child in like:
            child.forward = partial(checkpoint, child.forward, use_reentrant=False)
            wrapped += 1
    return wrapped
