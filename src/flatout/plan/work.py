"""The work of a step, operator by operator: traced once on tensors without data, then kept while the model exists.

The trace runs on a copy of the model, so the model is unchanged. It depends on the precision, the layout, the micro-batch and
recomputing; the trace of the update depends on how the optimizer is called. Other settings only change how the same work is
executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from flatout.base.specs import Spec
from flatout.data.source import Column
from flatout.engine.job import Job
from flatout.engine.optimizers import build_optimizer, decay_groups
from flatout.engine.precision import autocast
from flatout.engine.recompute import recompute_blocks
from flatout.engine.settings import Settings
from flatout.engine.update import guarded_update
from flatout.measure.counts import Counter, Operation, OperatorCounts
from flatout.measure.groups import MOVEMENT, UPDATE
from flatout.models.dataless import fake_copy, is_dataless
from flatout.models.head import pad_vocabulary
from flatout.models.repeats import Repeats
from flatout.models.residual import narrow_residual
from flatout.objectives.objective import Objective
from flatout.objectives.token_loss import has_kernels
from flatout.plan.traces import Traces


@dataclass(frozen=True)
class StepWork:
    """Forward and backward of `rows` samples, `parts` times per step, and `around`: fetching the batch, the update."""

    counts: OperatorCounts
    rows: int
    parts: float
    around: tuple[Operation, ...]
    batch_bytes: int  # as stored

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (*self.counts.operations, *self.around)

    @property
    def flops_per_sample(self) -> float:
        return self.counts.flops / self.rows


# for updates that can't be traced: how often they read or write all weights, and in how many operators
_UPDATES = {"adamw": (22, 11), "adam": (20, 10), "sgd": (7, 3)}
_TENSOR_CALLS = 0.5  # per tensor, as part of a call: a CPU handles tensors one by one, a GPU in one launch
_MANY, _MANY_WITHOUT_DATA = 500, 100  # tensors; each takes milliseconds to trace
_IN_A_GRAPH = 7  # extra small kernels of a graph
_SCALE_PASSES = 3  # clipping and averaging read tensors of the weights' size twice and write them once

Form = tuple[object, ...]
_KNOWN: WeakKeyDictionary[nn.Module, dict[Form, tuple[Objective, tuple[Operation, ...]]]] = WeakKeyDictionary()
_ALIKE: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()  # blocks that do the same work, from an earlier trace
_KEPT: WeakKeyDictionary[nn.Module, Traces] = WeakKeyDictionary()


def keep_traces(job: Job, traces: Traces) -> None:
    """Read stored traces and store new ones from now on."""
    _KEPT[job.model] = traces


def work_of(job: Job, settings: Settings, *, to_call: bool = False) -> StepWork:
    """Raises the model's own error if it can't run without data. `to_call`: include operations that can be called again."""
    whole, columns = job.data.typical_batch(job.batch)
    rows = min(settings.micro_batch or whole, whole)
    stored_bytes = sum(column.row_bytes for column in job.data.train.typical_batch(job.batch)[1].values())
    shapes = tuple((name, column.shape, column.dtype) for name, column in columns.items())
    head = _traced_head(settings), settings.vocabulary_padding
    how = settings.precision, settings.residual, settings.channels_last, settings.activation_checkpointing
    place = _trace_device(settings)
    both_ways: Form = (place, *how, *head, rows, shapes)
    update: Form = ("update", place, settings.fused_optimizer, settings.graph, settings.optimizer_offload)
    return StepWork(
        counts=OperatorCounts.of(_known(job, both_ways, to_call, lambda: trace(job, settings, rows, columns).operations)),
        rows=rows,
        parts=whole / rows,
        around=(
            *_fetched(settings, columns, 2 * whole * stored_bytes),
            *_known(job, update, to_call, lambda: _update(job, settings)),
        ),
        batch_bytes=whole * stored_bytes,
    )


def _known(job: Job, form: Form, to_call: bool, make: Callable[[], tuple[Operation, ...]]) -> tuple[Operation, ...]:
    known, kept = _KNOWN.setdefault(job.model, {}), _KEPT.get(job.model)
    objective, found = known.get(form, (None, None))
    if objective is not job.objective:
        found = None if kept is None else kept.read(str(form))
    if found is None or (to_call and any(one.key and one.call is None for one in found)):
        found = make()
        if kept is not None:
            kept.write(str(form), found)
    known[form] = (job.objective, found)
    return found


def trace(job: Job, settings: Settings, rows: int, columns: Mapping[str, Column]) -> OperatorCounts:
    """Forward and backward without computing: each tensor has a shape, dtype and device, but no data."""
    device = _trace_device(settings)
    model, fake = fake_copy(job.model)
    repeats = Repeats(model.train(), _ALIKE.setdefault(job.model, set()))
    if settings.activation_checkpointing:
        recompute_blocks(model)
    pad_vocabulary(model, settings.vocabulary_padding)
    narrow_residual(model, settings.residual == "autocast")
    loss = job.objective.with_loss_head(_traced_head(settings), model, device)
    with fake:
        state = {
            name: _turned(torch.empty_like(tensor, device=device), settings).requires_grad_(tensor.requires_grad)
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }
        batch = {
            name: _turned(torch.empty((rows, *column.shape), dtype=column.dtype, device=device), settings)
            for name, column in columns.items()
        }
        with Counter() as counter, repeats.counted_by(counter):
            with autocast(settings.precision, device):
                loss_sum, weight = loss(_Traced(model, state, counter), batch)
            (loss_sum / weight).backward()
    return OperatorCounts.of(repeats.operations(counter.counts().operations))


def _turned(tensor: Tensor, settings: Settings) -> Tensor:
    images = settings.channels_last and tensor.ndim == 4
    return tensor.contiguous(memory_format=torch.channels_last) if images else tensor


class _Traced(nn.Module):
    """The model with tensors without data. Operators outside of it, in both passes, belong to the loss."""

    def __init__(self, model: nn.Module, state: dict[str, Tensor], counter: Counter) -> None:
        super().__init__()
        self._call: Any = lambda *given, **named: functional_call(model, state, given, named)
        self._counter = counter

    def forward(self, *given: Any, **named: Any) -> Any:
        self._counter.in_loss = False
        output = self._call(*given, **named)
        self._counter.in_loss = True
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(self._reached)
        return output

    def _reached(self, gradient: Tensor) -> None:
        self._counter.in_loss = False


def _traced_head(settings: Settings) -> str:
    """The chunked head makes and reads the same logits as the fused one; without the kernels it is torch's formula."""
    return "fused" if settings.loss_head != "plain" and has_kernels(_trace_device(settings)) else "plain"


def _trace_device(settings: Settings) -> torch.device:
    """Without the accelerator its kernels can't be traced: the CPU's are used instead."""
    device = torch.device(settings.device)
    present = device.type == "cpu" or (torch.accelerator.is_available() and _accelerator() == device.type)
    return device if present else torch.device("cpu")


def _accelerator() -> str:
    found = torch.accelerator.current_accelerator()
    return "" if found is None else found.type


def _fetched(settings: Settings, columns: Mapping[str, Column], size_bytes: int) -> list[Operation]:
    """One operation per column. A graph also finds its rows and learning rate itself, and stores values for logging."""
    picked = [_moved("fetch", MOVEMENT, size_bytes // len(columns))] * len(columns)
    return picked + [_moved("bookkeeping", MOVEMENT, 0)] * (_IN_A_GRAPH if settings.graph else 0)


def _update(job: Job, settings: Settings) -> tuple[Operation, ...]:
    """A custom optimizer is not called for a prediction. Updates on the host, or of very many tensors, are estimated like
    others that can't be traced."""
    tensors = sum(1 for _ in job.model.parameters())
    many = _MANY_WITHOUT_DATA if is_dataless(job.model) else _MANY  # fewer for a model that is only explained
    if not isinstance(job.optimizer, Spec) or settings.optimizer_offload or tensors > many:
        return _usual_update(job, settings)
    try:
        return _traced_update(job, settings)
    except Exception:  # it depends on tensor values
        return _usual_update(job, settings)


def _traced_update(job: Job, settings: Settings) -> tuple[Operation, ...]:
    device = _trace_device(settings)
    model, fake = fake_copy(job.model)
    with fake:
        groups = decay_groups(model, job.weight_decay, job.rates)
        for group in groups:
            group["params"] = [_with_gradient(parameter, device) for parameter in group["params"]]
        trained = [parameter for group in groups for parameter in group["params"]]
        how: dict[str, Any] = {"fused": settings.fused_optimizer, "graph": settings.graph, "device": device}
        optimizer = build_optimizer(job.optimizer, groups, job.lr, **how)
        guarded = guarded_update(optimizer, device)
        loss = torch.empty((), device=device)
        for _ in range(2):  # the first update creates the optimizer state
            with Counter() as counter:
                norm = nn.utils.clip_grad_norm_(trained, job.clip, foreach=True) if job.clip is not None else loss
                guarded(norm) if guarded is not None else optimizer.step()
    average = _moved("average", UPDATE, _SCALE_PASSES * sum(_size_bytes(p) for p in trained))
    done = [replace(one, group=UPDATE) for one in counter.counts().operations]
    return tuple(done if job.ema is None else [*done, average])


def _with_gradient(parameter: Tensor, device: torch.device) -> nn.Parameter:
    made = nn.Parameter(torch.empty_like(parameter, device=device))
    made.grad = torch.empty_like(made)
    return made


def _usual_update(job: Job, settings: Settings) -> tuple[Operation, ...]:
    trained = [p for p in job.model.parameters() if p.requires_grad]
    name = job.optimizer.name if isinstance(job.optimizer, Spec) else "adamw"
    passes, operators = _UPDATES.get(name, _UPDATES["adamw"])
    if torch.device(settings.device).type == "cpu":
        operators = round(operators * max(1.0, _TENSOR_CALLS * len(trained)))
    scaled = (job.clip is not None) + (job.ema is not None)
    total_bytes = (passes + scaled * _SCALE_PASSES) * sum(_size_bytes(p) for p in trained)
    return (_moved("update", UPDATE, total_bytes // operators),) * operators


def _size_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _moved(name: str, group: str, size_bytes: int) -> Operation:
    return Operation(name, group, torch.float32, 0, ((-1, size_bytes),), ())
