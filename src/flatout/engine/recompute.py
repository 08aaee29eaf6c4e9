"""Activation checkpointing: repeated blocks drop their activations and compute them again in the backward."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_blocks(model: nn.Module) -> int:
    """Wrap the repeated blocks; returns how many were wrapped."""
    blocks = like_blocks(model)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return len(blocks)


def like_blocks(model: nn.Module) -> list[nn.Module]:
    """The children of every list of like modules."""
    found: list[nn.Module] = []
    for module in model.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        children = [child for child in module if any(True for _ in child.parameters())]
        like = [child for child in children if type(child) is type(children[0]) and any(True for _ in child.children())]
        if len(like) > 1:
            found += like
    return found
