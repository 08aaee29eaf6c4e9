"""A model becomes a step: on its device, in its memory format, with its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from flatout.engine.attention import use_flex
from flatout.engine.ema import Average
from flatout.engine.fp8 import to_fp8
from flatout.engine.job import Job
from flatout.engine.offload import HostOptimizer
from flatout.engine.optimizers import build_optimizer, decay_groups
from flatout.engine.recompute import recompute_blocks
from flatout.engine.settings import Settings
from flatout.engine.step import Step
from flatout.models.head import pad_vocabulary
from flatout.models.residual import narrow_residual


@dataclass(frozen=True)
class Made:
    step: Step
    optimizer: Optimizer | HostOptimizer
    average: Average | None
    lacks_blocks: bool  # recomputing was asked for, and there is nothing to recompute


def make_step(
    job: Job,
    model: nn.Module,
    settings: Settings,
    *,
    on_split: Callable[[int, int, str], None] = lambda before, after, reason: None,
    on_eager: Callable[[str], None] | None = None,
) -> Made:
    """`model` is changed and used: the job's own, or a copy of it."""
    device = torch.device(settings.device)
    model = model.to(device).train()
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if settings.precision == "fp8":
        to_fp8(model, device)
    if settings.attention == "flex":
        use_flex(model)
    lacks_blocks = settings.activation_checkpointing and not recompute_blocks(model)
    pad_vocabulary(model, settings.vocabulary_padding)
    narrow_residual(model, settings.residual == "autocast")
    for name, value in settings.own.items():
        job.turns[name](model, value)
    groups = decay_groups(model, job.weight_decay, job.rates)

    def build(groups: list[dict[str, Any]]) -> Optimizer:
        return build_optimizer(
            job.optimizer, groups, job.lr, fused=settings.fused_optimizer, graph=settings.graph, device=device
        )

    optimizer = HostOptimizer(groups, build) if settings.optimizer_offload else build(groups)
    average = Average(model, job.ema) if job.ema else None
    step = Step(
        model,
        job.objective.with_loss_head(settings.loss_head, model, device),
        optimizer,
        settings,
        clip=job.clip,
        average=average,
        on_split=on_split,
        on_eager=on_eager,
        shapes_vary=job.data.train.shapes_vary,
    )
    return Made(step, optimizer, average, lacks_blocks)
