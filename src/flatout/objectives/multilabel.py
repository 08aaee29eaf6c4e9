"""Any number of labels for each row: cross entropy per label, accuracy per label, F1 over all labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.base.errors import DataError, ModelError
from flatout.objectives.binary import check_zero_one
from flatout.objectives.columns import above, how_many
from flatout.objectives.inputs import Batch
from flatout.objectives.joining import JoinedMeter
from flatout.objectives.metrics import SumMeter, ratio
from flatout.objectives.objective import Loss, Meter, Objective, Task, checked_targets, full_precision, shown
from flatout.objectives.weighting import DeviceWeights, check_gamma, check_weights, focal_factor_of_yes_or_no


@dataclass(frozen=True)
class Multilabel(Objective):
    """Logits [rows, labels] against 0 and 1 of the same shape; the loss is the mean over labels.

    `pos_weight` multiplies the loss where y is 1: one number, or one for each label.
    """

    pos_weight: float | tuple[float, ...] | None = None
    focal: float | None = None
    _weights: DeviceWeights | None = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "multilabel"
    metric: ClassVar[str] = "f1"
    better: ClassVar[Literal["max", "min"]] = "max"
    task: ClassVar[Task | None] = "labels"

    def __post_init__(self) -> None:
        given = [self.pos_weight] if isinstance(self.pos_weight, int | float) else self.pos_weight
        check_weights(self.name, "pos_weight", given)
        check_gamma(self.name, self.focal)
        object.__setattr__(self, "_weights", None if given is None else DeviceWeights(given))

    def loss(self, output: Tensor, batch: Batch) -> Loss:
        logits = full_precision(output)
        target = batch["y"].to(logits.dtype)
        weights = None if self._weights is None else self._weights.on(logits)
        if self.focal is None:
            loss = F.binary_cross_entropy_with_logits(logits, target, reduction="sum", pos_weight=weights)
        else:
            losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none", pos_weight=weights)
            loss = (losses * focal_factor_of_yes_or_no(logits, target, self.focal)).sum()
        return loss, float(target.numel())

    @property
    def loss_is_log_loss(self) -> bool:
        return type(self).loss is Multilabel.loss and self._weights is None and self.focal is None

    def joins(self, batch: Batch) -> bool:
        return type(self).loss is Multilabel.loss

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
        labels = target.shape[-1]
        if self._weights is not None and len(self._weights) not in (1, labels):
            raise ModelError(f"pos_weight has {len(self._weights)} weights for {labels} labels: give one, or one for each")
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
        return JoinedMeter(SumMeter(device, _measure, _finish), device, self)

    def decode(self, output: Tensor) -> dict[str, Tensor]:
        probabilities = full_precision(output).sigmoid()
        return {"prediction": (probabilities >= 0.5).long(), "probabilities": probabilities}


def _measure(output: Tensor, batch: Batch) -> dict[str, Tensor | float]:
    target, guess = batch["y"].bool(), above(output, 0, or_equal=True)
    return {
        "correct": how_many(guess == target),
        "count": float(target.numel()),
        "hits": how_many(guess & target),
        "guessed": how_many(guess),
        "true": how_many(target),
    }


def _finish(total: Mapping[str, float]) -> dict[str, float]:
    return {
        "loss": ratio(total["loss"], total["weight"]),
        "accuracy": ratio(total["correct"], total["count"]),
        "f1": ratio(2 * total["hits"], total["guessed"] + total["true"]),
    }
