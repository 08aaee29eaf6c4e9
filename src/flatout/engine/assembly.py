"""Puts a job's parts on the device: model, optimizer, step, what feeds it with rows and counts its budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.base.events import EventLog
from flatout.data.cache.cache import Cache, disk_bytes
from flatout.data.feeds.contract import Feed
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.feeds.feed import feed as make_feed
from flatout.engine.attention import offers_hook, use_flex
from flatout.engine.compiling import Compiling
from flatout.engine.device import start_counting
from flatout.engine.ema import Average
from flatout.engine.fp8 import to_fp8
from flatout.engine.frozen import set_frozen
from flatout.engine.graph import GraphStep, capture_step
from flatout.engine.job import Job
from flatout.engine.offload import HostOptimizer
from flatout.engine.one_process import Exchange, Together
from flatout.engine.optimizers import build_optimizer, decay_groups
from flatout.engine.passes import Gradients, OwnGradients, Passes
from flatout.engine.progress import BudgetMeter, Progress, budget_of
from flatout.engine.recompute import recompute_blocks
from flatout.engine.records import Interval
from flatout.engine.settings import Settings
from flatout.engine.state import TrainState
from flatout.engine.step import Step
from flatout.engine.thawing import NoThawing, Thawing
from flatout.engine.update import trained_by
from flatout.machine.meters import Meters
from flatout.models.head import pad_vocabulary
from flatout.models.residual import narrow_residual
from flatout.objectives.objective import is_shared
from flatout.world.world import World

if TYPE_CHECKING:
    from flatout.engine.parallel.local import LocalUpdates


@dataclass
class Assembly:
    step: Step
    feed: Feed
    evaluation: EvalFeed | None
    state: TrainState
    budget: BudgetMeter
    meters: Meters
    compiling: Compiling | None  # None: nothing is compiled
    thawing: Thawing | NoThawing = field(default_factory=NoThawing)
    graph: GraphStep | None = None
    captured: Callable[[], None] = lambda: None  # captures the step again
    said: set[str] = field(default_factory=set)
    lost: str | None = None

    def capture(self, job: Job, settings: Settings, events: EventLog) -> None:
        """The whole step as one graph, once the state it starts from is in place."""
        if settings.graph:
            self.captured = partial(self.capture, job, settings, events)
            self.graph = capture_step(self.step, self.feed, self.state, job.batch, events)

    def thaw(self, samples: int) -> None:
        """Let the parameters train that are due after so many samples; others are frozen, also if they had trained."""
        made = self.thawing.set_for(samples, self.step, self.state)
        if made is None:
            return
        made.exchange.at = self.step.exchange.at
        self.step = made
        if self.graph is not None:
            self.graph = None  # its memory is free before the next one is captured
            self.captured()

    def next_size(self, progress: Progress) -> int:
        """Rows of the next batch."""
        return self.feed.next_size(self.budget.next_size(progress))

    def report_compiling(self, step: int) -> None:
        if self.compiling is not None:
            self.compiling.report(step)

    def say_degraded(self, events: EventLog) -> None:
        """Report how reading the data got worse since the last call: each reason once."""
        for reason in [*self.feed.degraded, *([self.lost] if self.lost else [])]:
            if reason not in self.said:
                self.said.add(reason)
                events.emit("degraded", what="tier", why=reason)

    def release(self) -> None:
        """Stop reading. Rows that were read into a cache stay there."""
        self.feed.release()
        self.meters.close()
        if self.evaluation is not None:
            self.evaluation.close()

    def stream_state(self) -> str | None:
        """Where an iterable dataset is, as JSON. None: a resumed run reads it again up to its position."""
        try:
            state = self.feed.state_dict()
            return None if state is None else json.dumps(state)
        except TypeError as error:
            self.lost = f"the state of the dataset can't be saved ({error}): a resumed run reads it again from the start"
            return None

    def seek(self, samples: int, stream: str | None = None) -> None:
        if stream is not None:
            self.feed.load_state_dict(json.loads(stream))
        self.feed.seek(samples)
        if self.graph is not None:
            self.graph.reload()

    def drain(self) -> Interval:
        """Losses, weights and norms of the steps since the last call. Waits for the device."""
        eager = self.step.records.drain()
        replayed = self.graph.records.drain() if self.graph is not None else Interval([], [], [])
        return self.step.exchange.of_all(
            Interval(replayed.losses + eager.losses, replayed.weights + eager.weights, replayed.norms + eager.norms)
        )


def assemble(
    job: Job, settings: Settings, folder: Path, events: EventLog, cache: Path | None, together: Together, meters: Meters
) -> Assembly:
    """`folder`: of the run. `cache`: where rows that take long to read may be kept."""
    device, world = torch.device(settings.device), together.world
    start_counting(device)

    def on_split(before: int, after: int, reason: str) -> None:
        events.emit("degraded", what="micro_batch", value=after, why=f"out of memory at {before} samples at a time: {reason}")

    compiling = None if settings.compile == "off" else Compiling(settings, folder, events)
    made = make_step(
        job, job.model, settings, on_split=on_split, on_eager=None if compiling is None else compiling.give_up, world=world
    )
    if made.lacks_blocks:
        events.emit("degraded", what="activation_checkpointing", why="the model has no list of like blocks to recompute")
    if settings.attention == "flex" and not offers_hook(job.model):
        events.emit(
            "degraded", what="attention", why="no module of the model has an attribute `attend`: torch chooses the kernel"
        )
    if made.own_statistics:
        from flatout.engine.parallel.statistics import OWN

        events.emit("degraded", what="batch norm", why=OWN)
    step = made.step
    step.passes.warm(world.largest_share(job.batch))
    budget = budget_of(job, meters, together.clock)
    compression = "none" if settings.cache_compression == "auto" else settings.cache_compression  # auto: no plan chose one
    kept = None if cache is None else Cache(cache, disk_bytes(cache, settings.disk_budget), compression)
    reading: Any = {"cache": kept, "threads": settings.reader_threads, "prefetch": settings.prefetch}
    feed = make_feed(
        job.data,
        settings.tier,
        batch=job.batch,
        device=device,
        seed=job.seed,
        world=world,
        total=budget.total_samples,
        **reading,
    )
    if feed.steps is not None:
        budget = budget_of(job, meters, together.clock, feed.steps)
    evaluation = None
    if job.data.validation is not None:
        rows = settings.evaluation_batch or job.batch
        served = "pinned" if feed.moved else settings.tier
        shares = is_shared(job.evaluated.meter(device))
        if not shares and world.data_size > 1:
            why = f"every process evaluates all rows: the metrics of {job.objective.name} can't be computed from shares"
            events.emit("degraded", what="evaluation", why=why)
        reading |= {"keep": True, "any_order": True, "world": world if shares else None}
        evaluation = EvalFeed(job.data.validation, job.data.prepare, rows, device, served, **reading)
    if kept is not None and (too_much := kept.trim()):  # not earlier: files that this run uses are open now, and stay
        events.emit("degraded", what="disk_budget", why=too_much)
    made_by = job.data.train.made_by
    state = TrainState(step.model, made.optimizer, made.average, step.scale, device, made_by, world, job.seed, made.local)
    thawing = Thawing(job, made.remake, world.largest_share(job.batch)) if job.frozen.until else NoThawing()
    return Assembly(step, feed, evaluation, state, budget, meters, compiling, thawing)


@dataclass(frozen=True)
class Made:
    step: Step
    optimizer: Optimizer | HostOptimizer
    average: Average | None
    remake: Callable[[Optimizer | HostOptimizer | None], tuple[Step, Optimizer | HostOptimizer]]  # after parameters changed
    lacks_blocks: bool  # recomputing was asked for, and the model has no blocks to recompute
    own_statistics: bool = False  # batch norms see only the rows of their process
    local: LocalUpdates | None = None  # processes have weights of their own between exchanges


def make_step(
    job: Job,
    model: nn.Module,
    settings: Settings,
    *,
    on_split: Callable[[int, int, str], None] = lambda before, after, reason: None,
    on_eager: Callable[[str], None] | None = None,
    world: World | None = None,
) -> Made:
    """A model becomes a step: on its device, in its memory format, with its optimizer. `model` itself is changed."""
    device, world = torch.device(settings.device), world or World()
    model = model.to(device).train()
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if settings.precision == "fp8":
        to_fp8(model, device)
    if settings.attention == "flex":
        use_flex(model)
    lacks_blocks = settings.activation_checkpointing and not recompute_blocks(model)
    own_statistics, local = False, None
    if world.token_size > 1 and job.exchange is None:
        from flatout.engine.parallel.statistics import share_statistics  # here: one process starts sooner without it

        model, shared = share_statistics(model, world, device)
        own_statistics = not shared
    pad_vocabulary(model, settings.vocabulary_padding)
    narrow_residual(model, settings.residual == "autocast")
    for name, value in settings.own.items():
        job.turns[name](model, value)
    loss = job.objective.with_loss_head(settings.loss_head, model, device)
    gradients: Callable[[Passes], Gradients] = OwnGradients
    if world.size == 1 and job.exchange is None:
        exchange = Exchange(model, loss)
    else:
        from flatout.engine.parallel.shared_step import share_step

        model, loss, exchange, gradients, local = share_step(job, model, loss, settings, world)
    if job.frozen.names:
        set_frozen(model, job.frozen.names)
    stages = job.thawing()[1] if job.frozen.until else None

    def build(groups: list[dict[str, Any]]) -> Optimizer:
        return build_optimizer(
            job.optimizer, groups, job.lr, fused=settings.fused_optimizer, graph=settings.graph, device=device
        )

    average = Average(model, job.ema) if job.ema else None

    def remake(before: Optimizer | HostOptimizer | None) -> tuple[Step, Optimizer | HostOptimizer]:
        if before is not None:
            exchange.train_others()
        groups = decay_groups(model, job.weight_decay, job.rates, stages)
        optimizer = HostOptimizer(groups, build) if settings.optimizer_offload else build(groups)
        if isinstance(before, Optimizer) and isinstance(optimizer, Optimizer):
            known: dict[Tensor, Any] = {one: before.state[one] for one in trained_by(optimizer) if one in before.state}
            optimizer.state.update(known)
        step = Step(
            model, loss, optimizer, settings, clip=job.clip, average=average, on_split=on_split, on_eager=on_eager,
            shapes_vary=job.data.train.shapes_vary, exchange=exchange, gradients=gradients,
        )  # fmt: skip
        return step, optimizer

    step, optimizer = remake(None)
    return Made(step, optimizer, average, remake, lacks_blocks, own_statistics, local)
