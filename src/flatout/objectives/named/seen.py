"""What metrics by name see of a batch: the model's output and y as rows, for each kind of task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.base.errors import DataError, ModelError, UsageError
from flatout.objectives.class_rows import ClassRows, class_rows
from flatout.objectives.columns import above
from flatout.objectives.inputs import Batch
from flatout.objectives.likeliest import highest_place
from flatout.objectives.metrics import accumulator
from flatout.objectives.objective import Task, full_precision, shown

TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True, eq=False)
class Seen:
    """`output` is [N, classes] logits for classes and tokens, [N] logits for yes_no, [N, columns] for labels and values.

    `wanted` is [N] integers for classes, tokens and yes_no; true and false, or numbers, in the shape of the output otherwise.
    Of classes and tokens, `ignore` is the target that does not count; None: negative ones. `loss` is the sum of -log p of what
    is true, if the objective has it. `here`: classes and tokens on a CPU, for which there are faster ways. `known`: columns of
    rows whose output was not kept.
    """

    task: Task
    output: Tensor
    wanted: Tensor
    ignore: int | None = None
    loss: Tensor | float | None = None
    here: ClassRows | None = None
    known: Mapping[str, Tensor] = field(default_factory=dict)

    def column(self, name: str) -> Tensor:
        """What is known of each row: predicted, hit, surest, or `within 5`."""
        if (kept := self.known.get(name)) is not None:
            return kept
        which, _, number = name.partition(" ")
        found: Tensor = self.within(int(number)) if number else getattr(self, which)
        return found

    @property
    def classes(self) -> int:
        return 2 if self.task == "yes_no" else self.output.shape[1]

    @cached_property
    def valid(self) -> Tensor | None:
        """[N], false for rows whose target is to be ignored; None if all count."""
        if self.task not in ("classes", "tokens"):
            return None
        if self.here is not None:
            return None if self.here.valid is None else torch.from_numpy(self.here.valid)
        return self.wanted >= 0 if self.ignore is None else self.wanted != self.ignore

    @cached_property
    def target(self) -> Tensor:
        """`wanted`, with 0 in place of what is ignored."""
        if self.here is not None:
            return torch.from_numpy(self.here.target)
        return self.wanted if self.valid is None else self.wanted.where(self.valid, 0)

    @cached_property
    def predicted(self) -> Tensor:
        """The class of each row; for labels, true or false for each label."""
        if "predicted" in self.known:
            return self.known["predicted"]
        if self.task in ("yes_no", "labels"):
            yes = above(self.output, 0, or_equal=True)
            return yes if self.task == "labels" else yes.long()
        return highest_place(self.output) if self.here is None else torch.from_numpy(self.here.predicted)

    @cached_property
    def hit(self) -> Tensor:
        """Whether the predicted class is the true one."""
        if "hit" in self.known:
            return self.known["hit"]
        return self.predicted == self.target if self.here is None else torch.from_numpy(self.here.hit)

    @cached_property
    def surest(self) -> Tensor:
        """The probability of the predicted class."""
        return 1 / self.total if self.here is None else torch.from_numpy(self.here.surest)

    def within(self, k: int) -> Tensor:
        """Whether the true class is among the k likeliest. Equal logits are ordered by class, as argmax does: a model whose
        logits are all the same gets no credit for ties."""
        if self.classes <= k:
            raise UsageError(f"metrics: top_k {k} is always 1 for {self.classes} classes: use a k below {self.classes}")
        if self.here is not None:
            return torch.from_numpy(self.here.within(k))
        own = self.output.gather(1, self.target[:, None])
        earlier = torch.arange(self.classes, device=own.device) < self.target[:, None]
        ahead = ~(self.output <= own) | ((self.output == own) & earlier)  # NaN is ahead of everything
        return ahead.sum(1) < k

    @cached_property
    def log_loss(self) -> Tensor | float:
        """The sum over the rows that count of -log p of what is true."""
        if self.loss is not None:
            return self.loss
        if self.here is not None:
            return self.here.loss
        exact = accumulator(self.output.device)
        if self.task in ("yes_no", "labels"):
            losses = F.binary_cross_entropy_with_logits(self.output, self.wanted.to(self.output.dtype), reduction="none")
            return losses.to(exact).sum()
        losses = F.cross_entropy(self.output, self.target, reduction="none").to(exact)
        return losses.where(self.counting.bool(), 0).sum()  # also where the ignored one is not finite

    def log_odds(self) -> Tensor:
        """[N, classes], or one column for two classes: numbers with the order of the probabilities p.

        log p up to 1/2; above it, -log(1 - p) - 2 log 2, from the sum of all other classes: p itself may be rounded to 1.
        """
        if self.classes == 2:
            return self.output[:, 1:] - self.output[:, :1]
        if self.here is not None:
            return self.here.log_odds()
        likeliest, scores = self.predicted[:, None], self.output.log_softmax(1)
        highest = scores.gather(1, likeliest)
        others = self.output.scatter(1, likeliest, -torch.inf)
        second = others.amax(1, keepdim=True).clamp_min(torch.finfo(others.dtype).min)
        rest = (others - second).exp_().sum(1, keepdim=True).log_()
        above = (self.output.gather(1, likeliest) - second) - rest - highest - 2 * math.log(2)
        return scores.scatter_(1, likeliest, torch.where(highest > -math.log(2), above, highest))

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
        return Seen(task, output.flatten(), above(target.flatten(), 0).long(), loss=loss)
    if task == "labels":
        return Seen(task, output.flatten(1), above(target.flatten(1), 0), loss=loss)
    if task == "values":
        return Seen(task, output.reshape(len(target), -1), target.to(output.dtype).reshape(len(target), -1))
    logits = (output.movedim(1, -1) if task == "classes" else output).flatten(0, -2)
    wanted = target.long().flatten()
    return Seen(task, logits, wanted, ignore, loss, class_rows(logits, wanted, "negative" if ignore is None else ignore))


def see_rows(task: Task, rows: ClassRows, ignore: int | None) -> Seen:
    return Seen(task, rows.logits, torch.from_numpy(rows.wanted), ignore, None, rows)


def see_raw(output: Any, batch: Batch) -> Seen:
    """As they are, for a user's function."""
    output, target = _pair(output, batch)
    return Seen("values", output.detach(), target)


def shapes_of(output: Any, batch: Batch) -> str:
    output, target = _pair(output, batch)
    return f"output {shown(output)} and y {shown(target)}"


def _pair(output: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    if "y" not in batch:
        raise DataError(f"metrics need targets in a column 'y'; the data has only {', '.join(batch)}")
    if not isinstance(output, Tensor):
        raise ModelError(
            f"metrics need a tensor from the model, or an object or dict with 'logits'; got {type(output).__name__}"
        )
    return output, batch["y"]
