"""Evaluation: metrics are summed on the device and read once, at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from flatout.base.errors import OutOfMemory
from flatout.data.feeds.evaluation import EvalFeed
from flatout.engine.device import release_cached, sync_point
from flatout.engine.one_process import Exchange
from flatout.engine.passes import Batch
from flatout.engine.precision import autocast
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.objectives.joining import adder
from flatout.objectives.objective import Meter, Objective

Found = TypeVar("Found")
OnSplit = Callable[[int, int, str], None]


def evaluate(
    model: nn.Module,
    objective: Objective,
    batches: Iterable[Batch],
    *,
    precision: str,
    device: torch.device,
    should_stop: Callable[[], bool] = lambda: False,
    exchange: Exchange | None = None,
) -> dict[str, float] | None:
    """Metrics over all batches, or None if `should_stop` said so. `exchange`: how a split model is called."""
    with looking(model, precision, device):
        meter = collect(model, objective, batches, device, should_stop, exchange)
        if meter is None:
            return None
        with sync_point():
            return meter.result()


def collect(
    model: nn.Module,
    objective: Objective,
    batches: Iterable[Batch],
    device: torch.device,
    should_stop: Callable[[], bool],
    exchange: Exchange | None,
) -> Meter | None:
    """The sums that metrics are computed from, or None if `should_stop` said so."""
    meter = objective.meter(device)
    add = adder(objective, meter)
    for batch in batches:
        if should_stop():
            return None
        output = objective.forward(model, batch) if exchange is None else exchange.look(objective.forward, batch)
        add(output, batch)
    return meter


@contextmanager
def looking(model: nn.Module, precision: str, device: torch.device) -> Iterator[None]:
    """Inside, the model is in eval mode and no gradients are recorded."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), autocast(precision, device):
            yield
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
    on_split: OnSplit,
    exchange: Exchange | None = None,
) -> dict[str, float] | None:
    """`evaluate`, repeated with smaller batches if memory runs out. Metrics are sums, so they don't change."""
    how: Any = {"precision": precision, "device": device, "should_stop": should_stop, "exchange": exchange}
    return in_memory(feed, device, on_split, lambda: evaluate(model, objective, feed, **how))


def in_memory(feed: EvalFeed, device: torch.device, on_split: OnSplit, attempt: Callable[[], Found]) -> Found:
    """The result of `attempt`, which goes through all batches; repeated with smaller ones if memory runs out."""
    while True:
        try:
            return attempt()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
        halve(feed, device, on_split, reason)


def halve(feed: EvalFeed, device: torch.device, on_split: OnSplit, reason: str) -> None:
    """Call it outside of the except block, where the traceback would hold tensors of the failed attempt."""
    release_cached(device)
    if feed.batch == 1:
        raise OutOfMemory(f"out of memory while evaluating one sample at a time ({reason}): use a smaller model")
    before, feed.batch = feed.batch, (feed.batch + 1) // 2
    on_split(before, feed.batch, reason)
