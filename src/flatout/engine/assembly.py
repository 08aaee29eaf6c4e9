"""Puts a job's parts on the device: model, optimizer, step in its form, what feeds it, what saves it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flatout.base.events import EventLog
from flatout.base.units import parse_seconds
from flatout.data.feed import EvalFeed, Feed, ResidentFeed
from flatout.data.feed import feed as make_feed
from flatout.engine.ema import Average
from flatout.engine.graph import GraphStep
from flatout.engine.job import Job
from flatout.engine.memory import start_counting
from flatout.engine.optimizers import build_optimizer, decay_groups
from flatout.engine.progress import BudgetMeter
from flatout.engine.recompute import recompute_blocks
from flatout.engine.records import Interval
from flatout.engine.saver import Saver
from flatout.engine.settings import Settings
from flatout.engine.state import TrainState
from flatout.engine.step import Step
from flatout.machine.meters import Meters
from flatout.store.run_folder import RunFolder

LOG_SLOTS = 4096  # the most steps between two log points


@dataclass
class Assembly:
    step: Step
    feed: Feed
    evaluation: EvalFeed | None
    state: TrainState
    saver: Saver
    budget: BudgetMeter
    meters: Meters
    graph: GraphStep | None = None

    def capture(self, job: Job, settings: Settings, events: EventLog) -> None:
        """The whole step as one graph, once the state it starts from is in place. What can't be captured goes without."""
        if not settings.graph:
            return
        assert isinstance(self.feed, ResidentFeed), "a graph picks its rows on the device"
        graph = GraphStep(self.step, self.feed, job.batch, LOG_SLOTS)
        try:
            graph.capture(self.state.copies, self.state.put_back)
            self.graph = graph
        except RuntimeError as error:
            why = str(error).strip().partition("\n")[0]
            events.emit(
                "degraded", what="graph", value=False, why=f"the step can't be captured, it is launched piece by piece: {why}"
            )

    def seek(self, samples: int) -> None:
        self.feed.seek(samples)
        if self.graph is not None:
            self.graph.reload()

    def drain(self) -> Interval:
        """What the steps since the last call did. Waits for the device."""
        eager = self.step.records.drain()
        replayed = self.graph.records.drain() if self.graph is not None else Interval([], [], [])
        return Interval(replayed.losses + eager.losses, replayed.weights + eager.weights, replayed.norms + eager.norms)


def assemble(job: Job, settings: Settings, folder: RunFolder, events: EventLog) -> Assembly:
    device = torch.device(settings.device)
    start_counting(device)
    model = job.model.to(device).train()
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if settings.activation_checkpointing and not recompute_blocks(model):
        events.emit("degraded", what="activation_checkpointing", why="the model has no list of like blocks to recompute")
    groups = decay_groups(model, job.weight_decay, job.rates)
    optimizer = build_optimizer(
        job.optimizer, groups, job.lr, fused=settings.fused_optimizer, graph=settings.graph, device=device
    )
    average = Average(model, job.ema) if job.ema else None

    def on_split(before: int, after: int, reason: str) -> None:
        events.emit("degraded", what="micro_batch", value=after, why=f"out of memory at {before} samples at a time: {reason}")

    step = Step(model, job.objective, optimizer, settings, clip=job.clip, average=average, on_split=on_split)
    step.warm(job.batch)
    feed = make_feed(job.data, settings.tier, batch=job.batch, device=device, seed=job.seed)
    for reason in feed.degraded:
        events.emit("degraded", what="tier", why=reason)
    evaluation = None
    if job.data.validation is not None:
        rows = settings.evaluation_batch or job.batch
        evaluation = EvalFeed(job.data.validation, job.data.prepare, batch=rows, device=device, tier=settings.tier)
    meters = Meters(device)
    return Assembly(
        step=step,
        feed=feed,
        evaluation=evaluation,
        state=TrainState(model, optimizer, average, step.scale, device),
        saver=Saver(folder.checkpoints(settings.keep_checkpoints), events, device, parse_seconds(settings.grace)),
        budget=BudgetMeter(
            job.budget,
            epoch_samples=len(job.data.train),
            batch=job.batch,
            tokens_per_sample=job.data.train.tokens_per_row,
            price_per_hour=job.price_per_hour,
            read_energy_j=lambda: meters.read().energy_j,
            energy_reason=meters.why_unavailable,
        ),
        meters=meters,
    )


def evaluation_interval(job: Job) -> int | None:
    """In samples; None: only at the end."""
    if job.evaluate_every is None or job.data.validation is None:
        return None
    return job.evaluate_every.samples(len(job.data.train), job.batch, job.data.train.tokens_per_row)
