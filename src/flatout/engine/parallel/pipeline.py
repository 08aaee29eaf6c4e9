"""Pipeline parallelism: each process has some layers of the model, and micro-batches go through them one after another.

The schedules are torch's. A batch is cut into micro-batches of equal shape; missing rows are filled with copies of a row, whose
output is ignored. The sum of all losses is differentiated, so micro-batches may have different weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from flatout.base.errors import UsageError, did_you_mean
from flatout.engine.parallel.spread import let_go
from flatout.engine.parallel.stages import Chain, cut, only
from flatout.engine.parallel.sums import sum_gradients_
from flatout.store.tensors import local_part

Batch = dict[str, Tensor]
Loss = tuple[Tensor, Tensor | float]
SCHEDULES = ("gpipe", "1f1b", "interleaved")
VIRTUAL = 2  # stages of each process in the interleaved schedule


class Edge(Protocol):
    """Converts the residual stream to a plain tensor and back between stages."""

    def enter(self, given: Tensor) -> Tensor: ...
    def leave(self, made: Tensor) -> Tensor: ...


class ChainStage(nn.Module):
    """Some pieces of a chain. Its modules belong to this process's part of the model."""

    def __init__(
        self, chain: Chain, part: nn.Module, pieces: range, within: Callable[[], AbstractContextManager[Any]], edge: Edge | None
    ) -> None:
        super().__init__()
        self.pieces, self.part = pieces, part
        self._chain, self._within, self._edge = chain, within, edge

    def forward(self, stream: Tensor, **side: Tensor) -> Tensor:
        with self._within():
            if self._edge is None:
                return self._chain.run(self.part, self.pieces, stream, side)
            entered = self._edge.enter(stream) if self.pieces.start else stream
            return self._edge.leave(self._chain.run(self.part, self.pieces, entered, side))


class Pipeline:
    """Runs batches through the stages of all processes of `group`. `model` is this process's part of the model."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Batch], Loss],
        call: Callable[[Callable[..., Any], Batch], Any],
        group: dist.ProcessGroup,
        device: torch.device,
        *,
        schedule: str = "1f1b",
        micro_batches: int = 0,
        costs: Sequence[float] | None = None,
        data_group: dist.ProcessGroup | None = None,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
        edge: Edge | None = None,
        spread: Callable[[nn.Module], object] | None = None,
    ) -> None:
        """`model` is the whole model, the same on all processes, with all changes to its modules already made.

        `call` calls a model with the columns of a batch that are its inputs. `micro_batches`: 0 is twice the number of
        processes. `costs`: of each piece, measured by one process for all; equal if not given. `data_group`: processes with
        the same stages and other rows. `within`: a context for forward and loss, such as autocast. `edge`: of a model split by
        tensor parallelism. `spread` shards the weights of a stage over processes with the same stage and other rows; gradients
        are then the mean over these, and there is no data group.
        """
        self.rank, size = dist.get_rank(group), dist.get_world_size(group)
        self._stages = stages_of(schedule, size)
        chain, self._pieces = cut(model, self._stages, costs)
        self.micro_batches = checked_micro_batches(schedule, micro_batches, size)
        mine = range(self.rank, self._stages, size)
        names = {stage: {name for piece in self._pieces[stage] for name in chain.pieces[piece]} for stage in mine}
        self.model = only(model, set().union(*names.values()))
        self.tied = _tied(chain, self._pieces, size)
        self._inputs_of = list(inspect.signature(model.forward).parameters)
        chain = replace(chain, model=self.model)  # without a reference to the other stages
        self._loss, self._call, self._within = loss, call, within
        self._group, self._data_group, self._device, self._schedule = group, data_group, device, schedule
        self._modules = {
            stage: ChainStage(chain, only(self.model, own), self._pieces[stage], within, edge) for stage, own in names.items()
        }
        if spread is not None:
            for module in self._modules.values():
                spread(module)
        self._runners: dict[object, Any] = {}
        self._rows: dict[object, int] = {}  # of a micro-batch, by shape of a row
        self._batch: Batch = {}
        self._factor: Tensor | float = 1.0
        self._found: dict[int, Loss] = {}

    @property
    def is_last(self) -> bool:
        """Whether it has the model's output and loss."""
        return self._stages - 1 in self._modules

    @property
    def counted_elsewhere(self) -> list[Tensor]:
        """Tied parameters of this process that another stage counts in the gradient norm."""
        shared = [names for names in self.tied if self.rank in names and self.rank != min(names)]
        return [self.model.get_parameter(names[self.rank]) for names in shared]

    def __call__(self, batch: Batch, factor: Tensor | float = 1.0) -> Loss:
        """Adds the gradients of loss_sum * factor; returns loss_sum and weight of the batch, the same on all stages.

        With a data group, gradients cover the rows of all its processes; loss and weight only those of this one.
        """
        self._batch, self._factor, self._found = batch, factor, {}
        runner, given = self._ready(batch, train=True)
        runner.step(*given[0], target=torch.arange(self.micro_batches), return_outputs=False, **given[1])
        self._batch = {}
        parameters = list(self.model.parameters())
        if self._data_group is not None:
            sum_gradients_(parameters, self._data_group)
        self._share_tied()
        return self._totals()

    @torch.no_grad()
    def outputs(self, batch: Batch) -> Tensor | None:
        """The model's output on the last stage, None on the others. The caller sets train or eval mode."""
        runner, given = self._ready(batch, train=False)
        made = runner.step(*given[0], **given[1])
        for module in self._modules.values():
            let_go(module)
        return made[: _rows(batch)] if self.is_last else None

    def _ready(self, batch: Batch, *, train: bool) -> tuple[Any, tuple[tuple[Tensor, ...], dict[str, Tensor]]]:
        """The schedule for batches of this shape, and its arguments on this process."""
        args, side = self._inputs(batch)
        shape = (train, *((tensor.shape[1:], tensor.dtype) for tensor in (*args, *side.values())))
        rows = _rows(batch)
        if shape not in self._rows or rows > self.micro_batches * self._rows[shape]:
            self._rows[shape] = max(1, -(-rows // self.micro_batches))
            self._runners[shape] = self._runner(train)
        wanted = self.micro_batches * self._rows[shape]
        filled = {name: _filled(tensor, wanted) for name, tensor in side.items()}
        first = tuple(_filled(tensor, wanted) for tensor in args) if 0 in self._modules else ()
        return self._runners[shape], (first, filled)

    def _inputs(self, batch: Batch) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The first input flows through the stages; every stage gets the others."""
        args, keywords = self._call(lambda *args, **keywords: (args, keywords), batch)
        named = dict(zip(self._inputs_of, args, strict=False)) | keywords
        first = named.pop(self._inputs_of[0])
        return (first,), named

    def _runner(self, train: bool) -> Any:
        stages = [
            PipelineStage(module, number, self._stages, self._device, group=self._group)
            for number, module in self._modules.items()
        ]
        loss = self._loss_of if train else None
        if self._schedule == "interleaved":
            return ScheduleInterleaved1F1B(stages, self.micro_batches, loss_fn=loss, scale_grads=False)  # type: ignore[arg-type]
        kind = Schedule1F1B if self._schedule == "1f1b" and train else ScheduleGPipe
        return kind(stages[0], self.micro_batches, loss_fn=loss, scale_grads=False)

    def _loss_of(self, output: Tensor, number: Tensor) -> Tensor:
        """The loss of one micro-batch. torch calls this once more, to learn the shapes of gradients."""
        index = int(number)
        begin = index * len(output)
        part = {name: column[begin : begin + len(output)] for name, column in self._batch.items()}
        if not _rows(part):
            self._found[index] = output.detach().new_zeros(()), 0.0
            return output.sum() * 0.0
        with self._within():
            loss_sum, weight = self._loss(output[: _rows(part)], part)
        self._found[index] = loss_sum.detach(), weight
        return loss_sum * self._factor

    def _totals(self) -> Loss:
        totals = torch.zeros(2, dtype=torch.float64, device=self._device)
        for loss_sum, weight in self._found.values():
            totals[0] += loss_sum
            totals[1] += weight
        self._found = {}
        dist.broadcast(totals, group=self._group, group_src=(self._stages - 1) % dist.get_world_size(self._group))
        return totals[0], totals[1]

    @torch.no_grad()
    def _share_tied(self) -> None:
        """A weight of several stages gets the sum of its gradients, computed by one of them, so that it stays equal."""
        for names in self.tied:
            if self.rank not in names:
                continue
            weight = self.model.get_parameter(names[self.rank])
            if not weight.requires_grad:
                continue
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            kept = local_part(weight.grad)  # processes with the same part are at the same place in their stages
            gradient = kept.contiguous()
            first, *others = sorted(names)
            if self.rank == first:
                for other in others:
                    dist.recv(arrived := torch.empty_like(gradient), group=self._group, group_src=other)
                    gradient += arrived
                for other in others:
                    dist.send(gradient, group=self._group, group_dst=other)
            else:
                dist.send(gradient, group=self._group, group_dst=first)
                dist.recv(gradient, group=self._group, group_src=first)
            if gradient is not kept:
                kept.copy_(gradient)


def stages_of(schedule: str, size: int) -> int:
    """The number of stages of `size` processes."""
    if schedule not in SCHEDULES:
        raise UsageError(f"there is no schedule {schedule!r}; {did_you_mean(schedule, SCHEDULES)}")
    return size * VIRTUAL if schedule == "interleaved" else size


def checked_micro_batches(schedule: str, given: int, size: int) -> int:
    number = given or 2 * size
    if schedule == "1f1b" and number < size:
        raise UsageError(f"pipeline=1f1b with {size} stages needs {size} micro-batches or more, got {number}: set {size}")
    if schedule == "interleaved" and number % size:
        fits = -(-number // size) * size
        raise UsageError(
            f"pipeline=interleaved needs a multiple of {size} micro-batches, its processes, got {number}: set {fits}"
        )
    return number


def _tied(chain: Chain, pieces: Sequence[range], size: int) -> list[dict[int, str]]:
    """Weights that several processes have: rank to name."""
    ranks = {name: stage % size for stage, mine in enumerate(pieces) for piece in mine for name in chain.pieces[piece]}
    owners: dict[int, dict[int, str]] = {}
    for name, weight in chain.model.named_parameters(remove_duplicate=False):
        rank = next(rank for module, rank in ranks.items() if name.startswith(f"{module}."))
        owners.setdefault(id(weight), {}).setdefault(rank, name)
    return [names for names in owners.values() if len(names) > 1]


def _rows(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def _filled(tensor: Tensor, rows: int) -> Tensor:
    """Fills up to `rows`, with zeros if there is no row. Contiguous, because torch 2.11 needs the same strides every time."""
    missing = rows - len(tensor)
    if not missing:
        return tensor.contiguous()
    other = tensor[-1:] if len(tensor) else tensor.new_zeros((1, *tensor.shape[1:]))
    return torch.cat([tensor, other.expand(missing, *tensor.shape[1:])])
