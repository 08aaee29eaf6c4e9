"""The parts of a run as the engine gets them: built and checked, independent of the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from flatout.base.budget import Budget
from flatout.base.specs import Spec
from flatout.data import Data
from flatout.engine.frozen import Frozen
from flatout.engine.optimizers import OptimizerLike, Schedule, parse_schedule
from flatout.engine.parallel.rounds import Rounds
from flatout.objectives.named.measured import measured
from flatout.objectives.named.metric import NamedMetric
from flatout.objectives.objective import Objective

Turn = Callable[[nn.Module, Any], None]
HIGHER_IS_BETTER = frozenset({"accuracy", "auc", "r2", "f1"})


@dataclass(frozen=True)
class EarlyStop:
    """Stop after `patience` evaluations in a row without a better `metric`; the best weights are then the result."""

    metric: str
    patience: int


@dataclass(frozen=True)
class BestBy:
    """The metric that decides which weights are the best."""

    metric: str
    higher_is_better: bool


@dataclass(frozen=True)
class Job:
    model: nn.Module
    data: Data
    objective: Objective
    batch: int
    lr: float
    budget: Budget
    optimizer: OptimizerLike = field(default_factory=lambda: Spec("adamw"))
    weight_decay: float = 0.01
    schedule: Schedule = field(default_factory=lambda: parse_schedule("cosine"))
    rates: Mapping[str, float] = field(default_factory=dict)
    frozen: Frozen = field(default_factory=Frozen)
    clip: float | None = None
    ema: float | None = None
    tensor_plan: Mapping[str, str] | None = None  # how tensor parallelism splits a model that is not built in
    exchange: Rounds | None = None  # exchange weights every few steps; None: exchange gradients in each step
    evaluate_every: Budget | None = field(default_factory=lambda: Budget.parse("1 epoch"))
    early_stop: EarlyStop | None = None
    best_by: BestBy | None = None  # None: by the metric of early_stop, else that of the objective
    price_per_hour: float | None = None
    seed: int = 0
    named_metrics: tuple[NamedMetric, ...] = ()  # in addition to those of the objective
    turns: Mapping[str, Turn] = field(default_factory=dict)  # how the recipe's own knobs change the model

    def epoch_samples(self, counted: Budget) -> int:
        """Rows in an epoch. A stream without a known length raises an error if `counted` is in epochs."""
        rows = self.data.epoch_rows
        return len(self.data.train) if rows is None and counted.unit == "epochs" else rows or 0

    def thawing(self) -> tuple[list[int], dict[str, int]]:
        """When frozen parameters start to train, in samples; and by parameter, the number of its start."""
        epochs = any(one.unit == "epochs" for when in self.frozen.until.values() for one in when)
        counted = Budget(1, "epochs" if epochs else "steps")
        return self.frozen.starts(self.epoch_samples(counted), self.rows_per_step, self.data.train.tokens_per_row)

    @property
    def evaluated(self) -> Objective:
        """The objective as an evaluation uses it: with the metrics that the recipe names."""
        return measured(self.objective, self.named_metrics, self.data.labels)

    @property
    def rows_per_step(self) -> float:
        """The batch size, or the average where batches differ in size."""
        return self.data.train.rows_per_batch(self.batch)

    @property
    def unit(self) -> str:
        return "tokens" if self.data.train.tokens_per_row > 1 else "samples"
