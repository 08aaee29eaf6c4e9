"""An objective together with the metrics that a recipe names, for evaluation. Training does not see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from flatout.base.errors import UsageError
from flatout.objectives.class_rows import ClassRows, Scratch
from flatout.objectives.inputs import Batch
from flatout.objectives.joining import JoinedMeter
from flatout.objectives.metrics import SumMeter, accumulator
from flatout.objectives.named.gathering import Gathered, on_host
from flatout.objectives.named.metric import NamedMetric
from flatout.objectives.named.seen import TASKS, possible_tasks, see, see_raw, see_rows, shapes_of
from flatout.objectives.named.waiting import LaterRows
from flatout.objectives.objective import Loss, Meter, Objective, SharedMeter, Task, is_shared

BASELINE = "baseline."  # before the name of a metric: its value for a model that does not look at its input
_NAMED = "<named "  # before what metrics with names collect


@dataclass(frozen=True)
class MeasuredObjective(Objective):
    """`names` are those of the classes."""

    of: Objective = field(kw_only=True)
    named: tuple[NamedMetric, ...] = field(kw_only=True)
    names: tuple[str, ...] | None = field(kw_only=True)

    name: ClassVar[str] = "measured"
    metric: ClassVar[str] = "loss"
    better: ClassVar[Literal["max", "min"]] = "min"

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        if self.of.of_output:
            return self.of.forward(model, batch)
        return self.of.forward(model, batch), self.inputs.call(model, batch)  # a loss of one's own keeps the output to itself

    def loss(self, output: Any, batch: Batch) -> Loss:
        return self.of.loss(output if self.of.of_output else output[0], batch)

    def joins(self, batch: Batch) -> bool:
        return self.of.joins(batch)

    def rows(self, output: Any, batch: Batch, scratch: Scratch) -> ClassRows | None:
        return self.of.rows(output, batch, scratch)

    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None:
        self.of.check(output if self.of.of_output else output[0], batch, outputs)

    def outputs_for(
        self, *, classes: int | None = None, target_shape: Sequence[int] = (), vocabulary: int | None = None
    ) -> int:
        return self.of.outputs_for(classes=classes, target_shape=target_shape, vocabulary=vocabulary)

    def decode(self, output: Any) -> dict[str, Tensor]:
        return self.of.decode(output)

    def meter(self, device: torch.device) -> Meter:
        own = self.of.meter(device)
        if isinstance(own, JoinedMeter):
            return JoinedMeter(_SharedNamedMeter(self, own.inner, device), device, self if own.of is self.of else None)
        return _SharedNamedMeter(self, own, device) if is_shared(own) else _NamedMeter(self, own, device)


def measured(objective: Objective, named: Sequence[NamedMetric], names: Sequence[str] | None) -> Objective:
    if not named:
        return objective
    return MeasuredObjective(objective.inputs, of=objective, named=tuple(named), names=None if names is None else tuple(names))


class _NamedMeter:
    """The metrics of the objective, then those with names, then their baselines."""

    def __init__(self, measured: MeasuredObjective, own: Meter, device: torch.device) -> None:
        self._measured, self._own, self._device = measured, own, device
        self._tasks: dict[str, Task] = {}  # of each metric
        self._gathered: dict[str, Gathered] = {}  # by place; metrics that need the same have the same place
        self._views: dict[str, list[Gathered]] = {}  # what looks at a batch in the same way
        self._waiting: dict[str, LaterRows] = {}  # by view

    def update(self, output: Any, loss_sum: Tensor, weight: float | Tensor, batch: Batch) -> None:
        of = self._measured.of
        given, output = (output, output) if of.of_output else output
        self._own.update(given, loss_sum, weight, batch)
        loss = loss_sum.detach().to(accumulator(self._device), copy=True) if of.loss_is_log_loss else None
        self._see(output, batch, loss)

    def look(self, rows: ClassRows, output: Any, batch: Batch) -> None:
        """As `update`, with the loss from the same pass."""
        if isinstance(self._own, SumMeter):
            self._own.look(rows, output, batch)
        else:
            self._own.update(output, torch.tensor(rows.loss, dtype=torch.float64), rows.weight, batch)
        self._see(output, batch, None, rows)

    def _see(self, output: Any, batch: Batch, loss: Tensor | None, rows: ClassRows | None = None) -> None:
        of = self._measured.of
        if not self._tasks:
            self._tasks = {metric.name: self._task_of(metric, output, batch) for metric in self._measured.named}
        if not self._views:
            self._views = self._made_views()
        for view, gathered in self._views.items():
            real = of.in_units(output)
            if view == "raw":
                seen = see_raw(real, batch)
            elif rows is not None and view == of.task:
                seen = see_rows(view, rows, of.ignored_target)
            else:
                seen = see(cast(Task, view), real, batch, of.ignored_target, loss)
            for one in self._waiting.setdefault(view, LaterRows()).add(seen, gathered):
                one.update(seen)

    def result(self) -> dict[str, float]:
        own = self._own.result()
        if not self._gathered:
            return own
        self._look()
        found, baselines = dict[str, float](), dict[str, float]()
        all_tensors = on_host(self._gathered)
        for metric, task in self._each():
            tensors = all_tensors[_place(metric, task)]
            names = self._measured.names if task in ("classes", "yes_no") else None
            found |= {metric.name + after: value for after, value in metric.finish(tensors, task, names).items()}
            if (baseline := metric.baseline(tensors, task)) is not None:
                baselines[BASELINE + metric.name] = baseline
        return {**own, **found, **baselines}

    def _made_views(self) -> dict[str, list[Gathered]]:
        views: dict[str, list[Gathered]] = {}
        for metric, task in self._each():
            place = _place(metric, task)
            if place not in self._gathered:
                self._gathered[place] = Gathered(metric.gathering(task))
            view = views.setdefault("raw" if metric.of_raw_output else task, [])
            if self._gathered[place] not in view:
                view.append(self._gathered[place])
        return views

    def _look(self) -> None:
        for waiting in self._waiting.values():
            waiting.look()

    def _each(self) -> Iterator[tuple[NamedMetric, Task]]:
        return ((metric, self._tasks[metric.name]) for metric in self._measured.named)

    def _task_of(self, metric: NamedMetric, output: Any, batch: Batch) -> Task:
        if metric.of_raw_output:
            return "values"
        for task in possible_tasks(self._measured.of.task, output, batch):
            if metric.fits(task):
                return task
        raise UsageError(
            f"metrics: {metric.name} can't be computed from {shapes_of(output, batch)}: classes need logits [rows, classes] "
            "and integers [rows]; yes or no, and numbers, need the shape of y"
        )


class _SharedNamedMeter(_NamedMeter):
    def __init__(self, measured: MeasuredObjective, own: SharedMeter, device: torch.device) -> None:
        super().__init__(measured, own, device)
        self._shared = own

    def collected(self) -> dict[str, Tensor]:
        self._look()
        found = dict(self._shared.collected())
        for place, gathered in self._gathered.items():
            found |= {f"{place}{name}": value for name, value in gathered.tensors().items()}
        return found

    def put_together(self, shares: Sequence[Mapping[str, Tensor]]) -> None:
        """This process may have had no rows: the shares tell which tasks there were."""
        self._shared.put_together([{name: share[name] for name in share if not name.startswith(_NAMED)} for share in shares])
        self._tasks, self._gathered, self._views, self._waiting = {}, {}, {}, {}
        for metric in self._measured.named:
            for task in TASKS:
                place = _place(metric, task)
                if metric.name not in self._tasks and any(name.startswith(place) for share in shares for name in share):
                    self._tasks[metric.name] = task
                    self._gathered[place] = Gathered(metric.gathering(task))
        for place, gathered in self._gathered.items():
            own = [{name.removeprefix(place): share[name] for name in share if name.startswith(place)} for share in shares]
            gathered.put_together(own, self._device)


def _place(metric: NamedMetric, task: Task) -> str:
    return f"{_NAMED}{'raw' if metric.of_raw_output else task} {metric.gathering(task).name}>"
