"""Yes or no for each row, from one logit: cross entropy, accuracy, area under the ROC curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.base.errors import ModelError, UsageError
from flatout.objectives.columns import above, how_many
from flatout.objectives.inputs import Batch
from flatout.objectives.joining import JoinedMeter
from flatout.objectives.metrics import SumMeter, area_under_curve, ratio
from flatout.objectives.objective import Loss, Meter, Objective, Task, checked_targets, full_precision, shown
from flatout.objectives.weighting import check_gamma, check_weights, focal_factor_of_yes_or_no

_SCORES, _LABELS = "<scores>", "<labels>"  # kept in addition to the sums


@dataclass(frozen=True)
class Binary(Objective):
    """Logits [rows] or [rows, 1] against 0 and 1. `pos_weight` multiplies the loss of rows with 1."""

    pos_weight: float | None = None
    class_weights: tuple[float, ...] | None = None
    focal: float | None = None

    name: ClassVar[str] = "binary"
    metric: ClassVar[str] = "auc"
    better: ClassVar[Literal["max", "min"]] = "max"
    task: ClassVar[Task | None] = "yes_no"

    def __post_init__(self) -> None:
        check_weights(self.name, "pos_weight", None if self.pos_weight is None else [self.pos_weight])
        check_weights(self.name, "class_weights", self.class_weights)
        check_gamma(self.name, self.focal)
        if self.class_weights is not None and len(self.class_weights) != 2:
            raise UsageError(f"binary: class_weights must be two weights, of 0 and of 1, got {list(self.class_weights)}")

    def loss(self, output: Tensor, batch: Batch) -> Loss:
        logits = full_precision(output).flatten()
        target = batch["y"].flatten().to(logits.dtype)
        if self.pos_weight is None and self.class_weights is None and self.focal is None:
            return F.binary_cross_entropy_with_logits(logits, target, reduction="sum"), float(target.numel())
        losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        if self.pos_weight is not None:
            losses = losses * (1 + (self.pos_weight - 1) * target)
        if self.focal is not None:
            losses = losses * focal_factor_of_yes_or_no(logits, target, self.focal)
        if self.class_weights is None:
            return losses.sum(), float(target.numel())
        no, yes = self.class_weights
        weights = no + (yes - no) * target
        return (losses * weights).sum(), weights.sum()

    @property
    def loss_is_log_loss(self) -> bool:
        return type(self).loss is Binary.loss and self.pos_weight is None and self.class_weights is None and self.focal is None

    def joins(self, batch: Batch) -> bool:
        return type(self).loss is Binary.loss

    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None:
        logits, target = checked_targets(self.name, output, batch)
        rows = len(target)
        if target.shape not in ((rows,), (rows, 1)):
            raise ModelError(f"binary needs one 0 or 1 per row in 'y', got {shown(target)}: for several labels use multilabel")
        if logits.shape not in ((rows,), (rows, 1)):
            raise ModelError(
                f"binary needs one logit per row, [{rows}] or [{rows}, 1], got {shown(logits)}: make the last layer 1 wide, "
                "or use objective: classify with one output per class"
            )
        check_zero_one(self.name, target)

    def outputs_for(
        self, *, classes: int | None = None, target_shape: Sequence[int] = (), vocabulary: int | None = None
    ) -> int:
        return 1

    def meter(self, device: torch.device) -> Meter:
        return JoinedMeter(_BinaryMeter(device), device, self)

    def decode(self, output: Tensor) -> dict[str, Tensor]:
        logit = full_precision(output).flatten()[:, None]
        probabilities = torch.cat((-logit, logit), 1).sigmoid()  # of no and of yes, each exact where it is small
        prediction = (probabilities[:, 1] >= 0.5).long()
        return {"prediction": prediction, "probability": probabilities.amax(1), "probabilities": probabilities}


class _BinaryMeter:
    """The exact AUC needs every score, so all scores are kept on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums = SumMeter(device, _measure, _finish)
        self._scores: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, output: Tensor, loss_sum: Tensor, weight: float | Tensor, batch: Batch) -> None:
        self._sums.update(output, loss_sum, weight, batch)
        # copies, because a captured graph writes its next batch into the same tensors
        self._scores.append(full_precision(output.detach()).flatten().clone())
        self._labels.append(batch["y"].flatten() != 0)

    def result(self) -> dict[str, float]:
        if not self._scores:
            return {}
        return {**self._sums.result(), "auc": area_under_curve(torch.cat(self._scores), torch.cat(self._labels)).item()}

    def collected(self) -> dict[str, Tensor]:
        if not self._scores:
            return {}
        return {**self._sums.collected(), _SCORES: torch.cat(self._scores), _LABELS: torch.cat(self._labels)}

    def put_together(self, shares: Sequence[Mapping[str, Tensor]]) -> None:
        self._scores, self._labels = ([share[name].to(self._device) for share in shares] for name in (_SCORES, _LABELS))
        kept = (_SCORES, _LABELS)
        self._sums.put_together([{name: value for name, value in share.items() if name not in kept} for share in shares])


def check_zero_one(name: str, target: Tensor) -> None:
    wrong = target[(target != 0) & (target != 1)]
    if wrong.numel():
        raise ModelError(f"{name} needs 0 and 1 in 'y', got {wrong[0].item():g}: for more classes use objective: classify")


def _measure(output: Tensor, batch: Batch) -> dict[str, Tensor | float]:
    target = batch["y"].flatten()
    right = above(output.flatten(), 0, or_equal=True) == target.bool()
    return {"correct": how_many(right), "count": float(target.numel())}


def _finish(total: Mapping[str, float]) -> dict[str, float]:
    return {"loss": ratio(total["loss"], total["weight"]), "accuracy": ratio(total["correct"], total["count"])}
