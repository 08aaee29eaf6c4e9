"""One arm of a trial: a copy of the model under one set of settings, run on given batches."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.base.specs import Spec
from flatout.engine.assembly import make_step
from flatout.engine.device import start_counting
from flatout.engine.graph import GraphStep
from flatout.engine.job import Job
from flatout.engine.optimizers import build_optimizer, decay_groups
from flatout.engine.settings import Settings
from flatout.engine.state import TrainState
from flatout.engine.surroundings import process_set_up
from flatout.measure.clock import synchronize
from flatout.measure.proof import StepSnapshot
from flatout.plan.trials.quiet import NoDropout

Batch = dict[str, Tensor]
_SLOTS = 4096
_SKIPS = 24  # fp16 starts with a large loss scale: this many steps may overflow first


class DeviceBatches:
    """Batches on the device, one after another, for a step that reads its batch from a fixed place."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batch = len(next(iter(batches[0].values())))
        self.position = 0
        self._batches = batches
        self._static: Batch = {}

    def load(self) -> None:
        if not self._static:
            self._static = {name: column.clone() for name, column in self._batches[0].items()}

    def seek(self, position: int) -> None:
        self.position = position

    def replace(self, batches: Sequence[Batch]) -> None:
        """Use other batches of the same shapes from the next step on."""
        self._batches = batches

    def bring(self) -> None:
        for name, column in self._batches[self.position // self.batch % len(self._batches)].items():
            self._static[name].copy_(column, non_blocking=True)

    def capture_next(self) -> Batch:
        return self._static

    def replayed(self) -> None:
        self.position += self.batch


class Arm:
    def __init__(self, job: Job, pristine: nn.Module, settings: Settings, batches: Sequence[Batch], *, quiet: bool) -> None:
        """`quiet`: dropout off."""
        self.job, self.settings, self.batches = job, settings, batches
        self.device = torch.device(settings.device)
        self._quiet = quiet
        start_counting(self.device)
        made = make_step(job, copy.deepcopy(pristine), settings)
        self.step, self.optimizer, self.model = made.step, made.optimizer, made.step.model
        self._state = TrainState(self.model, made.optimizer, made.average, made.step.scale, self.device)
        self._graph: GraphStep | None = None
        self._done = 0
        self._born = self._state.copies() if self.can_rewind else []
        self.step.passes.warm(len(next(iter(batches[0].values()))))

    @contextmanager
    def surroundings(self, seed: int = 0) -> Iterator[None]:
        """Process-wide state while this arm works; restored afterwards."""
        with process_set_up(self.settings, seed), NoDropout() if self._quiet else nullcontext():
            yield

    @property
    def can_rewind(self) -> bool:
        """Useful if a new arm would have to compile again. A custom optimizer may have state that we can't see."""
        return self.settings.compile != "off" and isinstance(self.job.optimizer, Spec) and not self._quiet

    def rewind(self) -> None:
        """Back to the initial state: weights, running statistics, optimizer state."""
        self.drain()
        with self.surroundings():
            self._state.put_back(self._born)
        self._done = 0

    def prepare(self) -> None:
        """Capture the graph, if the settings use one and there is none yet."""
        if self.settings.graph and self._graph is None:
            held: Any = DeviceBatches(self.batches)
            graph = GraphStep(self.step, held, held.batch, _SLOTS)
            graph.capture(self._state.copies, self._state.put_back)
            self._graph = graph

    def advance(self, rate: float) -> None:
        """One step on the next batch, queued without waiting."""
        if self._graph is not None:
            self._graph.feed.bring()
            self._graph(lambda ahead: rate, known_ahead=False)
            if self._graph.records.filled == _SLOTS:
                self._graph.records.drain()
        else:
            self.step.update.set_rate(rate)
            batch = self.batches[self._done % len(self.batches)]
            self.step.attempt(batch, len(next(iter(batch.values()))))
        self._done += 1

    def replace_batch(self, batch: Batch) -> None:
        """Use this batch for the next step; it must have the arm's shapes."""
        self.batches = [batch]
        if self._graph is not None:
            held: Any = self._graph.feed
            held.replace(self.batches)

    def drain(self) -> tuple[list[float], list[float], list[float]]:
        """Losses, weights and gradient norms since the last call. Waits for the device."""
        found = (self._graph.records if self._graph is not None else self.step.records).drain()
        return found.losses, found.weights, found.norms

    def seconds(self, steps: int) -> float:
        """Seconds of that many steps, with one wait at the end."""
        synchronize(self.device)
        began_s = time.perf_counter()
        for _ in range(steps):
            self.advance(self.job.lr)
        synchronize(self.device)
        return time.perf_counter() - began_s

    def snapshot(self, others: int = 2) -> StepSnapshot:
        """The first step, with everything that the proof compares. `others`: further batches whose loss is taken before it."""
        losses, dtype = self._losses_before(others)
        self.prepare()
        before = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        held = {name: _copy(tensor) for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers())}
        for _ in range(_SKIPS if self.step.scale is not None else 1):
            if self._graph is None:
                self._done = 0
            self.advance(self.job.lr)
            step_losses, weights, norms = self.drain()
            changed = any(not parameter.detach().equal(before[name]) for name, parameter in self.model.named_parameters())
            if changed:
                break
        gradients = {name: _copy(parameter.grad) for name, parameter in self.model.named_parameters()}
        return StepSnapshot(
            losses=(step_losses[0], *losses),
            loss_dtype=dtype,
            weight=weights[0],
            norm=norms[0] if norms else None,
            gradients=gradients,
            updates={name: _difference(p, before[name]) for name, p in self.model.named_parameters() if p.requires_grad},
            expected=_expected(self.job, self.model, before),
            buffers={name: _copy(buffer) for name, buffer in self.model.named_buffers()},
            before=held,
        )

    def _losses_before(self, others: int) -> tuple[list[float], str]:
        """Losses before the step; running statistics are restored."""
        kept = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        losses = [self.step.passes.mean_loss(batch) for batch in self.batches[1 : 1 + others]]
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(kept[name])
        return [float(loss) for loss in losses], str(losses[0].dtype).removeprefix("torch.") if losses else "float32"


def _copy(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    found = tensor.detach()
    return (found.float() if found.is_floating_point() and found.dtype != torch.float64 else found).clone()


def _difference(after: Tensor, before: Tensor) -> Tensor:
    found: Tensor = _copy(after.detach() - before)
    return found


def _expected(job: Job, model: nn.Module, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The update that torch's own optimizer, one parameter at a time, computes from the present gradients."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = decay_groups(model, job.weight_decay, job.rates)
    copies: dict[str, nn.Parameter] = {}
    for group in groups:
        fresh = []
        for parameter in group["params"]:
            name = names[id(parameter)]
            copies[name] = nn.Parameter(before[name].clone())
            copies[name].grad = None if parameter.grad is None else parameter.grad.detach().clone()
            fresh.append(copies[name])
        group["params"] = fresh
        group["lr"] = job.lr * group["factor"]
    plain(job, groups).step()
    return {name: _difference(parameter, before[name]) for name, parameter in copies.items()}


def plain(job: Job, groups: list[dict[str, Any]]) -> Optimizer:
    """The optimizer without fused, graph or foreach variants."""
    made = build_optimizer(job.optimizer, groups, job.lr, fused=False, graph=False, device=torch.device("cpu"))
    if isinstance(job.optimizer, Spec):
        for group in made.param_groups:
            group["foreach"] = False
    return made
