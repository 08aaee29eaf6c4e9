"""How far a run is: the counters in a checkpoint, and the budget that they are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from flatout.base.budget import Budget
from flatout.base.errors import MachineError, UsageError
from flatout.data.feeds.contract import StepEnds
from flatout.engine.job import Job
from flatout.machine.meters import Meters


@dataclass
class Progress:
    step: int = 0
    samples: int = 0
    untimed_samples: int = 0  # of first steps, which are not in the speed because they compile
    elapsed_s: float = 0.0
    energy_j: float = 0.0
    skipped: int = 0
    nonfinite_in_row: int = 0
    rollbacks: int = 0
    rate_factor: float = 1.0  # lowered by each rollback
    micro_batch: int = 0  # the size that was found when memory ran out
    next_evaluation: int = 0  # in samples
    evaluated_at: int = -1
    evaluations_since_best: int = 0
    best: dict[str, Any] | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    ledger: dict[str, float] = field(default_factory=dict)
    joules: dict[str, Any] = field(default_factory=dict)  # by meter and row of the ledger, of all processes

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class BudgetMeter:
    """Turns a budget into batch sizes, the share that is done, and the end of the run.

    If batches have fewer rows than `batch`, `rows_per_step` is their average and `steps` knows the exact numbers.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        epoch_samples: int,
        batch: int,
        tokens_per_sample: float,
        rows_per_step: float | None = None,
        steps: StepEnds | None = None,
        price_per_hour: float | None = None,
        read_energy_j: Callable[[], float | None] = lambda: None,
        energy_reason: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self.batch = batch
        self.total_samples: int | None = None
        self.total_steps: int | None = None
        self._price_per_hour = price_per_hour
        self._read_energy_j = read_energy_j
        self._clock = clock
        if budget.counted:
            self.total_samples = budget.samples(epoch_samples, rows_per_step or batch, tokens_per_sample)
            if steps is not None and budget.unit == "steps":
                self.total_samples = steps.samples_after(max(1, round(budget.amount)))
            samples = self.total_samples
            self.total_steps = -(-samples // batch) if steps is None else steps.steps_until(samples)
        if budget.unit == "usd" and not price_per_hour:
            raise UsageError(f"the budget {budget} needs a price: set price_per_hour, the cost of this machine in USD per hour")
        if budget.unit == "wh" and read_energy_j() is None:
            reason = energy_reason or "no energy counter can be read"
            raise MachineError(f"the budget {budget} can't be counted here: {reason}; use time or epochs")
        self._resumed_s = 0.0
        self._resumed_j = 0.0
        self._began_s = clock()
        self._began_j = read_energy_j() or 0.0

    def begin(self, progress: Progress) -> None:
        """Start the clock; the time and energy of earlier parts of the run are included."""
        self._resumed_s, self._resumed_j = progress.elapsed_s, progress.energy_j
        self._began_s = self._clock()
        self._began_j = self._read_energy_j() or 0.0

    def spend(self, progress: Progress) -> None:
        """Update the elapsed time, after every step."""
        progress.elapsed_s = self._resumed_s + self._clock() - self._began_s

    def spend_energy(self, progress: Progress, now_j: float | None) -> None:
        """Update the energy, at log points. `now_j`: the reading of the counter."""
        if now_j is not None:
            progress.energy_j = self._resumed_j + now_j - self._began_j

    def done_share(self, progress: Progress, more: int = 0) -> float:
        """The share of the budget that is done; `more`: after this many more samples, if the budget counts samples."""
        if self.total_samples is not None:
            return (progress.samples + more) / self.total_samples
        spent = {
            "seconds": progress.elapsed_s,
            "usd": progress.elapsed_s / 3600 * (self._price_per_hour or 0.0),
            "wh": progress.energy_j / 3600,
        }
        return spent[self.budget.unit] / self.budget.amount

    def next_size(self, progress: Progress) -> int:
        """A whole batch, or what is left of a counted budget, so that training sees exactly that many samples."""
        if self.total_samples is None:
            return self.batch
        return min(self.batch, self.total_samples - progress.samples)

    def is_spent(self, progress: Progress) -> bool:
        return self.done_share(progress) >= 1


def budget_of(
    job: Job, meters: Meters, clock: Callable[[], float] = time.monotonic, steps: StepEnds | None = None
) -> BudgetMeter:
    """`steps`: where batches end, if they have different numbers of rows."""
    return BudgetMeter(
        job.budget,
        epoch_samples=job.epoch_samples(job.budget),
        batch=job.batch,
        tokens_per_sample=job.data.train.tokens_per_row,
        rows_per_step=job.rows_per_step,
        steps=steps,
        price_per_hour=job.price_per_hour,
        read_energy_j=lambda: meters.read().energy_j,
        energy_reason=meters.why_unavailable,
        clock=clock,
    )
