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

    `wanted` is [N] integers for classes, tokens and yes_no; true and false, or numbers, in the shape of the output otherwise.
    Of classes and tokens, `ignore` is the target that does not count; None: negative ones. `loss` is the sum of -log p of what
    is true, if the objective has it. `guess`: the class of each row, if the output itself was not kept.
    """

    task: Task
    output: Tensor
    wanted: Tensor
    ignore: int | None = None
    loss: Tensor | None = None
    guess: Tensor | None = None

    @property
    def classes(self) -> int:
        return 2 if self.task == "yes_no" else self.output.shape[1]

    @cached_property
    def valid(self) -> Tensor | None:
        """[N], false for rows whose target is to be ignored; None if all count."""
        if self.task not in ("classes", "tokens"):
            return None
        return self.wanted >= 0 if self.ignore is None else self.wanted != self.ignore

    @cached_property
    def target(self) -> Tensor:
        """`wanted`, with 0 in place of what is ignored."""
        return self.wanted if self.valid is None else self.wanted.where(self.valid, 0)

    @cached_property
    def predicted(self) -> Tensor:
        """The class of each row; for labels, true or false for each label."""
        if self.guess is not None:
            return self.guess
        if self.task in ("yes_no", "labels"):
            return self.output >= 0 if self.task == "labels" else (self.output >= 0).long()
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


def see(task: Task, output: Any, batch: Batch, ignore: int | None, loss: Tensor | None = None) -> Seen:
    output, target = _pair(output, batch)
    output = full_precision(output.detach())
    if task == "yes_no":
        return Seen(task, output.flatten(), (target.flatten() > 0).long(), loss=loss)
    if task == "labels":
        return Seen(task, output.flatten(1), target.flatten(1) > 0, loss=loss)
    if task == "values":
        return Seen(task, output.reshape(len(target), -1), target.to(output.dtype).reshape(len(target), -1))
    logits = (output.movedim(1, -1) if task == "classes" else output).flatten(0, -2)
    return Seen(task, logits, target.long().flatten(), ignore, loss)


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
