"""Batch norm with several processes: over the rows of all processes on GPUs, else over those of each process."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flatout.world.world import World

OWN = "batch norms use the rows of one process each (over all rows only on GPUs); running statistics are averaged"


def share_statistics(model: nn.Module, world: World, device: torch.device) -> tuple[nn.Module, bool]:
    """The model, and whether its batch norms are over the rows of all processes."""
    if world.token_size == 1 or not _statistics(model):
        return model, True
    if device.type != "cuda":
        return model, False
    made: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model, world.data_group)
    return made, True


def average_statistics(model: nn.Module, world: World) -> None:
    """Call before an evaluation or a checkpoint."""
    if world.token_size > 1:
        for statistic in _statistics(model):
            world.sum_(statistic).div_(world.token_size)


def _statistics(model: nn.Module) -> list[Tensor]:
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    found = [statistic for norm in norms for statistic in (norm.running_mean, norm.running_var)]
    return [statistic for statistic in found if statistic is not None]
