"""A trained model on a device, computing there as it did in training."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import nn

from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.source import Source
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.device import pick_device
from flatout.machine.threads import cpu_threads, most_threads
from flatout.models.residual import narrow_residual
from flatout.runs.trained import trained_model
from flatout.store.run_folder import RunFolder


@dataclass(frozen=True)
class ModelInUse:
    model: nn.Module
    device: torch.device
    settings: Settings

    @property
    def precision(self) -> str:
        return precision_on(self.settings, self.device)

    def threads(self) -> AbstractContextManager[None]:
        """As many threads as in training, or as this process may use now."""
        return cpu_threads(min(self.settings.threads, most_threads()) if self.device.type == "cpu" else 0)

    def feed(self, job: Job, source: Source, rows: int, *, tier: str = "resident", any_order: bool = False) -> EvalFeed:
        """Batches of `rows`, prepared as in training. Rows that have to be read or decoded are streamed, because their number
        is not known."""
        served = "resident" if source.in_memory and tier == "resident" else "streamed"
        return EvalFeed(source, job.data.prepare, rows, self.device, served, any_order=any_order)


def put_to_use(folder: RunFolder, job: Job, settings: Settings, device: str, *, best_only: bool = False) -> ModelInUse:
    """The trained weights of a run, in evaluation mode. `device`: its name, or auto."""
    place = pick_device(device)
    return ModelInUse(as_trained(settings, trained_model(folder, job, best_only=best_only), place).eval(), place, settings)


def as_trained(settings: Settings, model: nn.Module, device: torch.device) -> nn.Module:
    """On the device, with the residual stream in the format of training; in float32 that makes no difference."""
    narrow_residual(model, settings.residual == "autocast")
    return model.to(device)


def precision_on(settings: Settings, device: torch.device) -> str:
    return settings.precision if torch.device(settings.device).type == device.type else "fp32"
