"""Sharded weights: each process has a part, and they are gathered when used, by torch's FSDP2."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flatout.engine.recompute import like_blocks
from flatout.engine.settings import Settings


def spread(root: nn.Module, mesh: Any, settings: Settings, *, reshard: bool) -> list[Any]:
    """Shards in place over the processes of `mesh`. `reshard`: free a block's weights after its forward.

    Returns the modules whose weights are gathered together, in the order of the forward.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    narrow = settings.precision == "bf16" and settings.device.partition(":")[0] != "cpu"
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if narrow else MixedPrecisionPolicy()
    blocks = like_blocks(root)
    for block in reversed(blocks):  # inner modules first
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(root, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    return [root, *blocks]


def let_go(root: nn.Module) -> None:
    """Free weights that were gathered for a forward without backward; the next forward would use old values otherwise."""
    from torch.distributed.fsdp import FSDPModule

    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
