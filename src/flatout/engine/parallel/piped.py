"""A model in stages, each on a process of its own, as an exchange between them."""

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
    """`model` is what this process has of it. A batch goes through all stages in pieces, forward and back."""

    averages = False

    def __init__(
        self,
        world: World,
        model: nn.Module,
        objective: Objective,
        settings: Settings,
        rows: int,
        columns: dict[str, Column],
        beside: Callable[[], AbstractContextManager[Any]],
        plan: Mapping[str, str] | None = None,
    ) -> None:
        """`rows` and `columns`: of a batch of this process, to measure the layers with. `plan`: how tensors are split."""
        from flatout.engine.parallel.pipeline import Pipeline, checked_micro_batches
        from flatout.engine.parallel.stages import chain_of, measure_costs
        from flatout.engine.parallel.tensor import split_tensors

        if not objective.of_output or settings.loss_head != "plain":
            raise UsageError("pipeline needs a built-in objective, whose loss is of the model's output: --off loss_head")
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
            costs=costs, data_group=world.mesh.get_group("data") if "data" in names and not is_spread else None, beside=beside,
            # gathered once for all pieces of a batch: they come one after the other, and each would do it again
            edge=edge, spread=(lambda stage: spread(stage, shard_mesh(world), settings, reshard=False)) if is_spread else None,
        )  # fmt: skip
        self.group = group
        self.has_output = self.pipeline.is_last
        super().__init__(self.pipeline.model, objective, world)

    def look(self, compute: Look, batch: Batch) -> Any:
        """On the last stage; None on the others."""
        return self.pipeline.outputs(batch)

    def learn(self, batch: Batch, whole: int, factor: torch.Tensor | float = 1.0) -> Loss:
        """Gradients of the sum over the rows of all that have the same stages, over `whole`."""
        return self.pipeline(batch, factor * self._averaged_over / whole)

    def clips(self, parameters: list[nn.Parameter], limit: float) -> Callable[[], Tensor]:
        return partial(clip_, parameters, limit, pipeline=self.group, skip=self.pipeline.counted_elsewhere)


class PipedGradients:
    """A batch becomes gradients of its mean loss on its way through the stages of all processes, and back."""

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
    """What the model's forward is called with: the first flows through the stages, the others are known to all of them."""
    names = list(inspect.signature(model.forward).parameters)
    found: dict[str, torch.Tensor] = {}

    def keep(*given: torch.Tensor, **named: torch.Tensor) -> None:
        found.update({**dict(zip(names, given, strict=False)), **named})

    objective.inputs.call(keep, sample)  # type: ignore[arg-type]
    first = found.pop(names[0])
    return first, found
