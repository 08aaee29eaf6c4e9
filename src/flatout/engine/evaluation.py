"""Evaluation on the device: metrics are summed there and read once, at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from flatout.engine.precision import autocast
from flatout.engine.step import Batch
from flatout.engine.sync import sync_point
from flatout.objectives.objective import Objective


def evaluate(
    model: nn.Module,
    objective: Objective,
    batches: Iterable[Batch],
    *,
    precision: str,
    device: torch.device,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Metrics over all batches, or None if it was asked to stop on the way."""
    was_training = model.training
    model.eval()
    meter = objective.meter(device)
    try:
        with torch.no_grad(), autocast(precision, device):
            for batch in batches:
                if should_stop():
                    return None
                output = objective.forward(model, batch)
                loss_sum, weight = objective.loss(output, batch)
                meter.update(output, loss_sum, weight, batch)
            with sync_point():
                return meter.result()
    finally:
        model.train(was_training)
