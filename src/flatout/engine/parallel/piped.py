"""Pipeline parallelism in a step: the exchange between stages, and the gradients of a batch that goes through them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flatout.base.errors import UsageError
from flatout.data.source import Column
from flatout.engine.one_process import Exchange, Look
from flatout.engine.parallel.exchange import shard_mesh
from flatout.engine.parallel.norms import clip_, scale_
from flatout.engine.parallel.spread import spread
from flatout.engine.passes import Attempts, Batch, Loss, Passes
from flatout.engine.records import NoPhases, Phases
from flatout.engine.settings import Settings
from flatout.objectives.objective import Objective
from flatout.world.world import World


class Piped(Exchange):
    """A batch goes through all stages in micro-batches, forward and back. `model` becomes this process's part of it."""

    averages = False

    def __init__(
        self,
        world: World,
        model: nn.Module,
        objective: Objective,
        settings: Settings,
        rows: int,
        columns: dict[str, Column],
        within: Callable[[], AbstractContextManager[Any]],
        plan: Mapping[str, str] | None = None,
    ) -> None:
        """`rows` and `columns` of a batch of this process, to time the layers. `plan`: how tensors are split."""
        from flatout.engine.parallel.pipeline import Pipeline, checked_micro_batches
        from flatout.engine.parallel.stages import chain_of, measure_costs
        from flatout.engine.parallel.tensor import split_tensors

        if not objective.of_output or settings.loss_head != "plain":
            raise UsageError("pipeline needs a built-in objective with a loss of the model's output: --off loss_head")
        device, names = torch.device(settings.device), world.mesh.mesh_dim_names
        group = world.mesh.get_group("pipeline")
        stages = world.mesh.shape[names.index("pipeline")]
        asked = -(-rows // settings.micro_batch) if settings.micro_batch else 0
        pieces = checked_micro_batches(settings.pipeline, asked, stages)
        chain = chain_of(model)
        sample = {
            name: torch.zeros(max(1, rows // pieces), *column.shape, dtype=column.dtype, device=device)
            for name, column in columns.items()
        }
        given, side = _inputs(model, objective, sample)
        costs = world.from_first(measure_costs(chain, given, side) if world.is_first else None)
        edge = split_tensors(model, world.mesh["tensor"], plan) if "tensor" in names else None
        is_spread = "shard" in names
        self._averaged_over = world.data_size if is_spread else 1
        self.pipeline = Pipeline(
            model, objective.loss, objective.inputs.call, group, device, schedule=settings.pipeline, micro_batches=pieces,
            costs=costs, data_group=world.mesh.get_group("data") if "data" in names and not is_spread else None, within=within,
            # not resharded: weights are gathered once for all micro-batches, not for each of them
            edge=edge, spread=(lambda stage: spread(stage, shard_mesh(world), settings, reshard=False)) if is_spread else None,
        )  # fmt: skip
        self.group = group
        self.has_output = self.pipeline.is_last
        super().__init__(self.pipeline.model, objective, world)

    def look(self, compute: Look, batch: Batch) -> Any:
        """The result on the last stage; None on the others."""
        return self.pipeline.outputs(batch)

    def learn(self, batch: Batch, whole: int, factor: torch.Tensor | float = 1.0) -> Loss:
        """Gradients of the loss summed over the rows of all processes with the same stages, divided by `whole`."""
        return self.pipeline(batch, factor * self._averaged_over / whole)

    def clips(self, parameters: list[nn.Parameter], limit: float) -> Callable[[], Tensor]:
        return partial(clip_, parameters, limit, pipeline=self.group, skip=self.pipeline.counted_elsewhere)


class PipedGradients:
    """Gradients of the mean loss of a batch that goes through the stages of all processes and back."""

    def __init__(self, passes: Passes, exchange: Piped, world: World) -> None:
        self.phases: Phases = NoPhases()
        self._passes, self._exchange, self._world = passes, exchange, world

    def take(self, step: Attempts, batch: Batch, whole: int | None) -> None:
        step.attempt(batch, len(next(iter(batch.values()))) if whole is None else whole)

    def __call__(self, batch: Batch, rows: int) -> Loss:
        self._passes.forget_gradients()
        low, high = self._world.share(rows)
        own = {name: column[: high - low] for name, column in batch.items()}
        totals = torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in self._exchange.learn(own, rows)])
        self._world.sum_(totals)
        scale_(self._passes.parameters, rows / totals[1])
        self.phases.mark("backward")
        return totals[0] / totals[1], totals[1]


def _inputs(model: nn.Module, objective: Objective, sample: Batch) -> tuple[torch.Tensor, Batch]:
    """The arguments of the model's forward: the first flows through the stages, every stage gets the others."""
    names = list(inspect.signature(model.forward).parameters)
    found: dict[str, torch.Tensor] = {}

    def keep(*given: torch.Tensor, **named: torch.Tensor) -> None:
        found.update({**dict(zip(names, given, strict=False)), **named})

    objective.inputs.call(keep, sample)  # type: ignore[arg-type]
    first = found.pop(names[0])
    return first, found
