"""Weights of which each process keeps a part, gathered where they are used: torch's FSDP2 around a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flatout.engine.recompute import like_blocks
from flatout.engine.settings import Settings


def spread(root: nn.Module, mesh: Any, settings: Settings, *, reshard: bool) -> list[Any]:
    """In place, over the processes of `mesh`. `reshard`: a block's weights are let go after its forward. Returns all modules
    whose weights are gathered together, as a forward comes to them."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    narrow = settings.precision == "bf16" and settings.device.partition(":")[0] != "cpu"
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if narrow else MixedPrecisionPolicy()
    blocks = like_blocks(root)
    for block in reversed(blocks):  # what is inside of another first
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(root, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    return [root, *blocks]


def let_go(root: nn.Module) -> None:
    """What was gathered to look at a batch. A backward does it by itself; without one, the next forward would find it there
    still, whatever has become of the weights since."""
    from torch.distributed.fsdp import FSDPModule

    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
