"""Puts a job's parts on the device: model, optimizer, step in its form, what feeds it, what saves it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flatout.base.events import EventLog
from flatout.base.units import parse_seconds
from flatout.data.cache.cache import Cache, disk_bytes
from flatout.data.feeds.contract import CapturableFeed, Feed, StepEnds
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.feeds.feed import feed as make_feed
from flatout.data.source import Source
from flatout.engine.attention import offers_hook
from flatout.engine.compiling import Compiling, is_compilers, why_not
from flatout.engine.graph import GraphStep
from flatout.engine.job import Job
from flatout.engine.making import make_step
from flatout.engine.memory import start_counting
from flatout.engine.progress import BudgetMeter, Progress
from flatout.engine.records import Interval
from flatout.engine.saver import Saver, SaverElsewhere
from flatout.engine.settings import LOG_SLOTS, Settings
from flatout.engine.signals import StopRequest
from flatout.engine.state import TrainState
from flatout.engine.step import Step
from flatout.engine.together import Together
from flatout.machine.meters import Meters
from flatout.objectives.objective import is_shared
from flatout.store.run_folder import RunFolder
from flatout.store.sharded import ShardedCheckpoints
from flatout.store.sharded_peers import Peers
from flatout.world.world import World


@dataclass
class Assembly:
    step: Step
    source: Source
    feed: Feed
    evaluation: EvalFeed | None
    state: TrainState
    saver: Saver
    checkpoints: ShardedCheckpoints
    budget: BudgetMeter
    meters: Meters
    compiling: Compiling
    graph: GraphStep | None = None
    said: set[str] = field(default_factory=set)
    lost: str | None = None

    def capture(self, job: Job, settings: Settings, events: EventLog) -> None:
        """The whole step as one graph, once the state it starts from is in place. What can't be captured goes without."""
        if not settings.graph:
            return
        if (feed := self.feed.capturable) is None:
            events.emit("degraded", what="graph", value=False, why=self.feed.why_not_capturable)
            return
        try:
            self.graph = self._captured(feed, job.batch)
        except RuntimeError as error:
            why = str(error).strip().partition("\n")[0]
            events.emit(
                "degraded", what="graph", value=False, why=f"the step can't be captured, it is launched piece by piece: {why}"
            )

    def _captured(self, feed: CapturableFeed, rows: int) -> GraphStep:
        graph = GraphStep(self.step, feed, rows, LOG_SLOTS)
        try:
            graph.capture(self.state.copies, self.state.put_back)
        except RuntimeError as error:
            if not self.step.passes.compiled or not is_compilers(error):
                raise
            why = why_not(error)
        else:
            self.step.passes.say_eager()
            return graph
        self.step.go_eager(why)
        return self._captured(feed, rows)

    def next_size(self, progress: Progress) -> int:
        """Rows of the next batch."""
        return self.feed.next_size(self.budget.next_size(progress))

    def say_degraded(self, events: EventLog) -> None:
        """What has become worse about the data since the last time: each reason once."""
        for reason in [*self.feed.degraded, *([self.lost] if self.lost else [])]:
            if reason not in self.said:
                self.said.add(reason)
                events.emit("degraded", what="tier", why=reason)

    def release(self) -> None:
        """Nothing is served any more; what was read into a cache stays there."""
        self.feed.release()
        if self.evaluation is not None:
            self.evaluation.close()
        self.checkpoints.peers.close()

    def stream_state(self) -> str | None:
        """As JSON; what is not plain data can't be kept, and the stream is then read again up to where it was."""
        try:
            state = self.feed.state_dict()
            return None if state is None else json.dumps(state)
        except TypeError as error:
            self.lost = f"the state of the dataset can't be kept ({error}): a resumed run reads it again from the start"
            return None

    def seek(self, samples: int, stream: str | None = None) -> None:
        if stream is not None:
            self.feed.load_state_dict(json.loads(stream))
        self.feed.seek(samples)
        if self.graph is not None:
            self.graph.reload()

    def drain(self) -> Interval:
        """What the steps since the last call did. Waits for the device."""
        eager = self.step.records.drain()
        replayed = self.graph.records.drain() if self.graph is not None else Interval([], [], [])
        return self.step.exchange.of_all(
            Interval(replayed.losses + eager.losses, replayed.weights + eager.weights, replayed.norms + eager.norms)
        )


def assemble(
    job: Job,
    settings: Settings,
    folder: RunFolder,
    events: EventLog,
    cache: Path | None = None,
    together: Together | None = None,
) -> Assembly:
    """`cache` is where rows may be kept that take long to read."""
    together = together or Together(World(), StopRequest())
    device, world = torch.device(settings.device), together.world
    start_counting(device)

    def on_split(before: int, after: int, reason: str) -> None:
        events.emit("degraded", what="micro_batch", value=after, why=f"out of memory at {before} samples at a time: {reason}")

    compiling = Compiling(settings, folder.path, events)
    compiling.begin()
    made = make_step(job, job.model, settings, on_split=on_split, on_eager=compiling.give_up, world=world)
    if made.lacks_blocks:
        events.emit("degraded", what="activation_checkpointing", why="the model has no list of like blocks to recompute")
    if settings.attention == "flex" and not offers_hook(job.model):
        events.emit("degraded", what="attention", why="no module of the model has an attribute `attend`: torch's own choice")
    if made.own_statistics:
        from flatout.engine.parallel.statistics import OWN

        events.emit("degraded", what="batch norm", why=OWN)
    step = made.step
    step.passes.warm(world.largest_share(job.batch))
    meters = Meters(device)
    budget = budget_of(job, meters, together)
    compression = "none" if settings.cache_compression == "auto" else settings.cache_compression  # nobody chose
    kept = None if cache is None else Cache(cache, disk_bytes(cache, settings.disk_budget), compression)
    feed = make_feed(
        job.data,
        settings.tier,
        batch=job.batch,
        device=device,
        seed=job.seed,
        cache=kept,
        threads=settings.reader_threads,
        prefetch=settings.prefetch,
        world=world,
        total=budget.total_samples,
    )
    if feed.steps is not None:
        budget = budget_of(job, meters, together, feed.steps)
    evaluation = None
    if job.data.validation is not None:
        rows = settings.evaluation_batch or job.batch
        served = "pinned" if feed.moved else settings.tier
        options: Any = {"keep": True, "cache": kept, "any_order": True}
        options |= {"threads": settings.reader_threads, "prefetch": settings.prefetch}
        shares = is_shared(job.objective.meter(device))
        if not shares and world.data_size > 1:
            why = f"every process evaluates all rows: the metrics of {job.objective.name} can't be put together from shares"
            events.emit("degraded", what="evaluation", why=why)
        options["world"] = world if shares else None
        evaluation = EvalFeed(job.data.validation, job.data.prepare, rows, device, served, **options)
    if kept is not None and (too_much := kept.trim()):  # now that what this run uses is open
        events.emit("degraded", what="disk_budget", why=too_much)
    apart = world.is_split or made.local is not None  # each has something of its own to keep
    saver = Saver if world.is_first or apart else SaverElsewhere
    peers = Peers(world if apart else World())
    checkpoints = ShardedCheckpoints(folder.checkpoints(settings.keep_checkpoints), peers)
    return Assembly(
        step=step,
        source=job.data.train,
        feed=feed,
        evaluation=evaluation,
        state=TrainState(
            step.model, made.optimizer, made.average, step.scale, device, job.data.train.made_by, world, job.seed, made.local
        ),
        saver=saver(checkpoints, events, device, parse_seconds(settings.grace)),
        checkpoints=checkpoints,
        budget=budget,
        meters=meters,
        compiling=compiling,
    )


def budget_of(job: Job, meters: Meters, together: Together, steps: StepEnds | None = None) -> BudgetMeter:
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
        clock=together.clock,
    )
