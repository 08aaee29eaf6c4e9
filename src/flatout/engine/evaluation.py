"""Evaluation on the device: metrics are summed there and read once, at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from flatout.base.errors import OutOfMemory
from flatout.data.serving.evaluation import EvalFeed
from flatout.engine.memory import is_out_of_memory, release_cached
from flatout.engine.parallel.context import own_stretches
from flatout.engine.parallel.exchange import Exchange
from flatout.engine.precision import autocast
from flatout.engine.step import Batch
from flatout.engine.sync import sync_point
from flatout.machine.world import World
from flatout.objectives.metrics import SumMeter
from flatout.objectives.objective import Objective


def evaluate(
    model: nn.Module,
    objective: Objective,
    batches: Iterable[Batch],
    *,
    precision: str,
    device: torch.device,
    should_stop: Callable[[], bool] = lambda: False,
    exchange: Exchange | None = None,
    world: World | None = None,
) -> dict[str, float] | None:
    """Metrics over all batches, or None if it was asked to stop on the way.

    `exchange`: how a model in parts is called. `world`: whose processes have parts of the sequences.
    """
    world = world or World()
    was_training = model.training
    model.eval()
    meter = objective.meter(device)
    try:
        with torch.no_grad(), autocast(precision, device):
            for batch in batches:
                if should_stop():
                    return None
                batch = own_stretches(objective, batch, world)
                output = objective.forward(model, batch) if exchange is None else exchange.look(objective.forward, batch)
                if output is None:
                    continue  # another process has it
                loss_sum, weight = objective.loss(output, batch)
                meter.update(output, loss_sum, weight, batch)
            if world.context_size > 1:
                assert isinstance(meter, SumMeter)  # next_token's; no other objective is split so
                meter.add_up(world.sum_over_context_)
            with sync_point():
                return meter.result() if exchange is None else exchange.told(meter.result())
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
    exchange: Exchange | None = None,
    world: World | None = None,
) -> dict[str, float] | None:
    """`evaluate`, again with smaller batches where memory runs out: the metrics are sums, so they stay the same."""
    while True:
        try:
            how: Any = {"precision": precision, "device": device, "should_stop": should_stop}
            return evaluate(model, objective, feed, **how, exchange=exchange, world=world)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
        release_cached(device)
        if feed.batch == 1:
            raise OutOfMemory(f"out of memory while evaluating a single sample at a time ({reason}): use a smaller model")
        before, feed.batch = feed.batch, (feed.batch + 1) // 2
        on_split(before, feed.batch, reason)
