"""Evaluation on the device: metrics are summed there and read once, at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from flatout.base.errors import OutOfMemory
from flatout.data.serving.evaluation import EvalFeed
from flatout.engine.memory import is_out_of_memory, release_cached
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


def evaluate_in_memory(
    model: nn.Module,
    objective: Objective,
    feed: EvalFeed,
    *,
    precision: str,
    device: torch.device,
    should_stop: Callable[[], bool],
    on_split: Callable[[int, int, str], None],
) -> dict[str, float] | None:
    """`evaluate`, again with smaller batches where memory runs out: the metrics are sums, so they stay the same."""
    while True:
        try:
            return evaluate(model, objective, feed, precision=precision, device=device, should_stop=should_stop)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
        release_cached(device)
        if feed.batch == 1:
            raise OutOfMemory(f"out of memory while evaluating a single sample at a time ({reason}): use a smaller model")
        before, feed.batch = feed.batch, (feed.batch + 1) // 2
        on_split(before, feed.batch, reason)
