"""The inputs of every choice: the job, the machine, the pinned settings, the length of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.ceilings import Ceilings
from flatout.plan.predict import predict
from flatout.plan.prediction import Prediction
from flatout.plan.thread_times import ChosenThreads
from flatout.plan.trials.recording import shown


@dataclass(frozen=True)
class Situation:
    job: Job
    device: torch.device
    pins: Mapping[str, Any]
    ceilings: Ceilings | None
    plain: Prediction  # for the run with every knob off
    cache: Path | None = None  # folder for decoded and prepared rows
    recorded: Mapping[str, Prediction] = field(default_factory=dict)  # of another machine, by settings as text
    threads: ChosenThreads | None = None  # on a CPU; None: not chosen
    prefer: str = "time"  # or "energy": what trials of settings should save

    def predicted(self, settings: Settings) -> Prediction:
        if (known := self.recorded.get(shown(settings.to_dict()))) is not None:
            return known
        if self.plain.reason:
            return self.plain  # what prevents one prediction prevents all of them
        return predict(self.job, settings, self.ceilings)

    @property
    def epochs(self) -> float | None:
        steps = self.total_steps
        rows = self.job.data.epoch_rows
        return None if steps is None or not rows else steps * self.job.rows_per_step / rows

    @property
    def total_steps(self) -> int | None:
        return total_steps(self.job)

    @property
    def expected_s(self) -> float | None:
        """How long the run would take in plain PyTorch."""
        if job_seconds := (self.job.budget.amount if self.job.budget.unit == "seconds" else None):
            return job_seconds
        if self.total_steps is None or self.plain.step_s is None:
            return None
        return self.total_steps * self.plain.step_s


def total_steps(job: Job) -> int | None:
    """None: unknown."""
    if not job.budget.counted:
        return None
    samples = job.budget.samples(job.epoch_samples(job.budget), job.rows_per_step, job.data.tokens_per_row)
    return math.ceil(samples / job.rows_per_step)
