"""A model becomes a step: on its device, in its memory format, with its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from flatout.engine.attention import use_flex
from flatout.engine.ema import Average
from flatout.engine.fp8 import to_fp8
from flatout.engine.gradients import Exchange, Gradients, OwnGradients
from flatout.engine.job import Job
from flatout.engine.offload import HostOptimizer
from flatout.engine.optimizers import build_optimizer, decay_groups
from flatout.engine.parallel.context import loss_of_own, split_sequences
from flatout.engine.parallel.local import LocalGradients, LocalUpdates
from flatout.engine.passes import Passes
from flatout.engine.precision import autocast
from flatout.engine.recompute import recompute_blocks
from flatout.engine.settings import Settings
from flatout.engine.step import Step
from flatout.models.head import pad_vocabulary
from flatout.models.residual import narrow_residual
from flatout.world.world import World


@dataclass(frozen=True)
class Made:
    step: Step
    optimizer: Optimizer | HostOptimizer
    average: Average | None
    lacks_blocks: bool  # recomputing was asked for, and there is nothing to recompute
    own_statistics: bool = False  # batch norms see a process's own rows
    local: LocalUpdates | None = None  # processes have weights of their own between exchanges


def make_step(
    job: Job,
    model: nn.Module,
    settings: Settings,
    *,
    on_split: Callable[[int, int, str], None] = lambda before, after, reason: None,
    on_eager: Callable[[str], None] | None = None,
    world: World | None = None,
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
    world = world or World()
    shared = True
    if world.token_size > 1 and job.exchange is None:
        from flatout.engine.parallel.statistics import share_statistics  # one process starts sooner without it

        model, shared = share_statistics(model, world, device)
    pad_vocabulary(model, settings.vocabulary_padding)
    narrow_residual(model, settings.residual == "autocast")
    for name, value in settings.own.items():
        job.turns[name](model, value)
    loss = job.objective.with_loss_head(settings.loss_head, model, device)
    local = None if job.exchange is None else LocalUpdates(model, loss, job.exchange, world)
    if world.context_size > 1:
        _, columns = job.data.typical_batch(world.largest_share(job.batch))
        split_sequences(model, job.objective, {name: column.shape for name, column in columns.items()}, world)
        loss = loss_of_own(loss, job.objective, world)
    gradients: Callable[[Passes], Gradients] = OwnGradients
    if local is not None:
        exchange: Any = local
        gradients = partial(LocalGradients, updates=local)
    elif world.mesh is not None and "pipeline" in world.mesh.mesh_dim_names:
        exchange, gradients = _piped(job, model, settings, world)
        model = exchange.pipeline.model
    elif world.mesh is None and world.token_size == 1:
        exchange = Exchange(model, loss)
    else:
        from flatout.engine.parallel.exchange import exchange_for
        from flatout.engine.parallel.shared_gradients import SharedGradients

        exchange = exchange_for(world, model, loss, settings, job.tensor_plan)
        if world.token_size > 1:
            gradients = partial(SharedGradients, exchange=exchange, world=world)
    groups = decay_groups(model, job.weight_decay, job.rates)

    def build(groups: list[dict[str, Any]]) -> Optimizer:
        return build_optimizer(
            job.optimizer, groups, job.lr, fused=settings.fused_optimizer, graph=settings.graph, device=device
        )

    optimizer = HostOptimizer(groups, build) if settings.optimizer_offload else build(groups)
    average = Average(model, job.ema) if job.ema else None
    step = Step(
        model,
        loss,
        optimizer,
        settings,
        clip=job.clip,
        average=average,
        on_split=on_split,
        on_eager=on_eager,
        shapes_vary=job.data.train.shapes_vary,
        exchange=exchange,
        gradients=gradients,
    )
    return Made(step, optimizer, average, lacks_blocks, not shared, local)


def _piped(job: Job, model: nn.Module, settings: Settings, world: World) -> tuple[Any, Callable[[Passes], Gradients]]:
    from flatout.engine.parallel.piped import Piped, PipedGradients

    rows, columns = job.data.typical_batch(world.largest_share(job.batch))
    device = torch.device(settings.device)
    beside = partial(autocast, settings.precision, device)
    exchange = Piped(world, model, job.objective, settings, rows, columns, beside, job.tensor_plan)
    return exchange, partial(PipedGradients, exchange=exchange, world=world)
