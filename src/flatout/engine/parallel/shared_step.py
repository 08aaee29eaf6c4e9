"""A step that several processes share: how each computes its part of the gradients, and how the parts are exchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from flatout.engine.job import Job
from flatout.engine.one_process import Exchange
from flatout.engine.parallel.context import loss_of_own, split_sequences
from flatout.engine.parallel.local import LocalGradients, LocalUpdates
from flatout.engine.passes import Gradients, LossFunction, OwnGradients, Passes
from flatout.engine.precision import autocast
from flatout.engine.settings import Settings
from flatout.world.world import World

MakeGradients = Callable[[Passes], Gradients]


def share_step(
    job: Job, model: nn.Module, loss: LossFunction, settings: Settings, world: World
) -> tuple[nn.Module, LossFunction, Exchange, MakeGradients, LocalUpdates | None]:
    """The model and its loss on this process, and how gradients are computed and exchanged."""
    local = None if job.exchange is None else LocalUpdates(model, loss, job.exchange, world)
    if world.context_size > 1:
        _, columns = job.data.typical_batch(world.largest_share(job.batch))
        split_sequences(model, job.objective, {name: column.shape for name, column in columns.items()}, world)
        loss = loss_of_own(loss, job.objective, world)
    if local is not None:
        return model, loss, local, partial(LocalGradients, updates=local), local
    if world.mesh is not None and "pipeline" in world.mesh.mesh_dim_names:
        return _in_stages(job, model, loss, settings, world)

    from flatout.engine.parallel.exchange import exchange_for
    from flatout.engine.parallel.shared_gradients import SharedGradients

    exchange = exchange_for(world, model, loss, settings, job.tensor_plan)
    gradients: MakeGradients = OwnGradients
    if world.token_size > 1:
        gradients = partial(SharedGradients, exchange=exchange, world=world)
    return model, loss, exchange, gradients, None


def _in_stages(
    job: Job, model: nn.Module, loss: LossFunction, settings: Settings, world: World
) -> tuple[nn.Module, LossFunction, Exchange, MakeGradients, None]:
    from flatout.engine.parallel.piped import Piped, PipedGradients

    rows, columns = job.data.typical_batch(world.largest_share(job.batch))
    within = partial(autocast, settings.precision, torch.device(settings.device))
    exchange = Piped(world, model, job.objective, settings, rows, columns, within, job.tensor_plan)
    return exchange.pipeline.model, loss, exchange, partial(PipedGradients, exchange=exchange, world=world), None
