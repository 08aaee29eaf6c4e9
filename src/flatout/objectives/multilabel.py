"""Any number of labels for each row: cross entropy per label, accuracy per label, F1 over all labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.base.errors import DataError, ModelError
from flatout.objectives.binary import check_zero_one
from flatout.objectives.inputs import Batch
from flatout.objectives.metrics import SumMeter, ratio
from flatout.objectives.objective import Loss, Meter, Objective, Task, checked_targets, full_precision, shown


@dataclass(frozen=True)
class Multilabel(Objective):
    """Logits [rows, labels] against 0 and 1 of the same shape; the loss is the mean over labels."""

    name: ClassVar[str] = "multilabel"
    metric: ClassVar[str] = "f1"
    better: ClassVar[Literal["max", "min"]] = "max"
    task: ClassVar[Task | None] = "labels"

    def loss(self, output: Tensor, batch: Batch) -> Loss:
        logits = full_precision(output)
        target = batch["y"].to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, target, reduction="sum"), float(target.numel())

    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None:
        logits, target = checked_targets(self.name, output, batch)
        if target.dim() < 2:
            raise ModelError(
                f"multilabel needs 0 or 1 for each label in 'y', [rows, labels], got {shown(target)}: use classify"
            )
        if logits.shape != target.shape:
            raise ModelError(
                f"multilabel needs one logit for each label, {shown(target)}, got {shown(logits)}: "
                f"make the last layer {math.prod(target.shape[1:])} wide"
            )
        check_zero_one(self.name, target)

    def outputs_for(
        self, *, classes: int | None = None, target_shape: Sequence[int] = (), vocabulary: int | None = None
    ) -> int:
        if not target_shape:
            raise DataError(
                "multilabel needs 0 or 1 for each label in 'y', [rows, labels], but it has one number per row: use classify"
            )
        return math.prod(target_shape)

    def meter(self, device: torch.device) -> Meter:
        return SumMeter(device, _measure, _finish)

    def decode(self, output: Tensor) -> dict[str, Tensor]:
        probabilities = full_precision(output).sigmoid()
        return {"prediction": (probabilities >= 0.5).long(), "probabilities": probabilities}


def _measure(output: Tensor, batch: Batch) -> dict[str, Tensor | float]:
    target, guess = batch["y"].bool(), output >= 0
    return {
        "correct": (guess == target).sum(),
        "count": float(target.numel()),
        "hits": (guess & target).sum(),
        "guessed": guess.sum(),
        "true": target.sum(),
    }


def _finish(total: Mapping[str, float]) -> dict[str, float]:
    return {
        "loss": ratio(total["loss"], total["weight"]),
        "accuracy": ratio(total["correct"], total["count"]),
        "f1": ratio(2 * total["hits"], total["guessed"] + total["true"]),
    }
