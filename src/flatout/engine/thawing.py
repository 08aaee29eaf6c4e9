"""Gradual unfreezing: at set points of a run, parameters that were frozen start to train.

The stage of a run is a function of the samples seen, so a resume needs nothing else to know it. At a new stage the optimizer
gets the parameters of that stage, with the state it had for the others, and the step is made again around it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from flatout.base.errors import UsageError
from flatout.engine.frozen import set_frozen, set_training
from flatout.engine.job import Job
from flatout.engine.offload import HostOptimizer
from flatout.engine.state import TrainState
from flatout.engine.step import Step

Remake = Callable[[Any], tuple[Step, Optimizer | HostOptimizer]]


class NoThawing:
    """What is frozen stays so."""

    def due(self, samples: int) -> bool:
        return False

    def set_for(self, samples: int, step: Step, state: TrainState) -> Step | None:
        return None

    def began(self) -> tuple[str, ...]:
        return ()


class Thawing:
    def __init__(self, job: Job, remake: Remake, rows: int) -> None:
        """`rows`: of a batch, that this process has."""
        self._starts, self._stages = job.thawing()
        self._frozen, self._remake = job.frozen.names, remake
        self._stage, self._rows = 0, rows

    def due(self, samples: int) -> bool:
        return self._stage_at(samples) != self._stage

    def set_for(self, samples: int, step: Step, state: TrainState) -> Step | None:
        """The step of the stage that a run is in after so many samples; None if it is in that stage already."""
        if not self.due(samples):
            return None
        if not isinstance(state.optimizer, Optimizer):
            raise UsageError("unfreeze needs the optimizer on the device of the model: --off optimizer_offload")
        self._stage = self._stage_at(samples)
        model, still = step.model, self._still_frozen()
        set_frozen(model, still)
        set_training(model, self._frozen - still, still)
        made, state.optimizer = self._remake(state.optimizer)
        if step.scale is not None and made.scale is not None:
            made.scale.scale.copy_(step.scale.scale)
            made.scale.growth.copy_(step.scale.growth)
        state.scale = made.scale
        made.passes.micro_batch = step.passes.micro_batch
        made.passes.warm(self._rows)
        return made

    def began(self) -> tuple[str, ...]:
        """The parameters that start to train in this stage."""
        return tuple(name for name, stage in self._stages.items() if stage == self._stage)

    def _stage_at(self, samples: int) -> int:
        return bisect_right(self._starts, samples)

    def _still_frozen(self) -> frozenset[str]:
        return frozenset(name for name in self._frozen if self._stages.get(name, self._stage + 1) > self._stage)
