"""What metrics by name see of a batch: the model's output and y as rows, for each kind of task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import torch
from torch import Tensor

from flatout.base.errors import DataError, ModelError
from flatout.objectives.inputs import Batch
from flatout.objectives.likeliest import highest_place
from flatout.objectives.objective import Task, full_precision, shown

TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True, eq=False)
class Seen:
    """`output` is [N, classes] logits for classes and tokens, [N] logits for yes_no, [N, columns] for labels and values.

    `target` is [N] integers for classes, tokens and yes_no; 0 and 1 or numbers of the same shape as the output for the others.
    `valid` is [N], false for rows whose target is to be ignored; None if all count.
    """

    task: Task
    output: Tensor
    target: Tensor
    valid: Tensor | None = None

    @property
    def classes(self) -> int:
        return 2 if self.task == "yes_no" else self.output.shape[1]

    @cached_property
    def predicted(self) -> Tensor:
        """The class of each row; for labels, 0 or 1 for each label."""
        if self.task in ("yes_no", "labels"):
            return (self.output >= 0).long()
        return highest_place(self.output)

    @cached_property
    def highest(self) -> Tensor:
        """The largest logit of each row."""
        return self.output.gather(1, self.predicted[:, None])[:, 0]

    @cached_property
    def exps(self) -> Tensor:
        """[N, classes]: the probability of each class, as a multiple of the highest."""
        return (self.output - self.highest[:, None]).exp_()

    @cached_property
    def total(self) -> Tensor:
        return self.exps.sum(1)

    @cached_property
    def counting(self) -> Tensor:
        """1 for each row that counts, else 0."""
        return torch.ones_like(self.target) if self.valid is None else self.valid.long()


def possible_tasks(task: Task | None, output: Any, batch: Batch) -> tuple[Task, ...]:
    """The task of the objective. For a loss of one's own, every task that the shapes of the output and of y allow."""
    if task is not None:
        return (task,)
    output, target = _pair(output, batch)
    if output.numel() == target.numel() and len(output) == len(target):
        return ("values", "yes_no") if target.numel() == len(target) else ("values", "labels")
    if output.dim() == target.dim() + 1:
        by_last, by_second = output.shape[:-1] == target.shape, (len(output), *output.shape[2:]) == tuple(target.shape)
        found: dict[Task, bool] = {"classes": by_second, "tokens": by_last and target.dim() > 1}
        return tuple(task for task, fits in found.items() if fits)
    return ()


def see(task: Task, output: Any, batch: Batch, ignore: int | None) -> Seen:
    """`ignore`: the target that does not count; None: for a loss of one's own, negative ones."""
    output, target = _pair(output, batch)
    output = full_precision(output.detach())
    if task == "yes_no":
        return Seen(task, output.flatten(), (target.flatten() > 0).long())
    if task == "labels":
        return Seen(task, output.flatten(1), (target.flatten(1) > 0).long())
    if task == "values":
        return Seen(task, *(side.reshape(len(target), -1) for side in (output, target.to(output.dtype))))
    logits = (output.movedim(1, -1) if task == "classes" else output).flatten(0, -2)
    wanted = target.long().flatten()
    valid = wanted >= 0 if ignore is None else wanted != ignore
    return Seen(task, logits, wanted.where(valid, 0), valid)


def see_raw(output: Any, batch: Batch) -> Seen:
    """As they are, for a user's function."""
    output, target = _pair(output, batch)
    return Seen("values", output.detach(), target)


def shapes_of(output: Any, batch: Batch) -> str:
    output, target = _pair(output, batch)
    return f"output {shown(output)} and y {shown(target)}"


def joined_rows(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _pair(output: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    if "y" not in batch:
        raise DataError(f"metrics need targets in a column 'y'; the data has only {', '.join(batch)}")
    if not isinstance(output, Tensor):
        raise ModelError(
            f"metrics need a tensor from the model, or an object or dict with 'logits'; got {type(output).__name__}"
        )
    return output, batch["y"]
