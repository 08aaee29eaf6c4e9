"""One class for each row, or for each pixel of a row: cross entropy and accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.base.errors import DataError, ModelError, UsageError
from flatout.objectives.class_rows import ClassRows, Scratch, class_rows
from flatout.objectives.inputs import Batch
from flatout.objectives.joining import JoinedMeter
from flatout.objectives.likeliest import highest_place
from flatout.objectives.metrics import SumMeter, of_rows, ratio
from flatout.objectives.objective import Loss, Meter, Objective, Task, checked_targets, full_precision, shown
from flatout.objectives.weighting import DeviceWeights, check_gamma, check_weights, focal_factor


@dataclass(frozen=True)
class Classify(Objective):
    """Logits [rows, classes, ...] against integers [rows, ...].

    Rows mixed with another row (mixup, cutmix) have its label in `y_other` and their own share in `mix`.
    """

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None
    focal: float | None = None
    _weights: DeviceWeights | None = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "classify"
    metric: ClassVar[str] = "accuracy"
    better: ClassVar[Literal["max", "min"]] = "max"
    task: ClassVar[Task | None] = "classes"

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(f"classify: label_smoothing must be at least 0 and below 1, got {self.label_smoothing}")
        check_weights(self.name, "class_weights", self.class_weights)
        check_gamma(self.name, self.focal)
        object.__setattr__(self, "_weights", None if self.class_weights is None else DeviceWeights(self.class_weights))

    def loss(self, output: Tensor, batch: Batch) -> Loss:
        target, logits = batch["y"].long(), full_precision(output)
        if "mix" in batch:
            (own, weight), (other, other_weight) = (
                self._of_rows(logits, labels) for labels in (target, batch["y_other"].long())
            )
            mix = batch["mix"].to(own.dtype)
            whole = float(target.numel()) if self._weights is None else torch.lerp(other_weight, weight, mix).sum()
            return torch.lerp(other, own, mix).sum(), whole
        if self._weights is not None or self.focal is not None:
            losses, weights = self._of_rows(logits, target)
            return losses.sum(), float(target.numel()) if self._weights is None else weights.sum()
        loss = F.cross_entropy(logits, target, reduction="sum", label_smoothing=self.label_smoothing)
        return loss, float(target.numel())

    @property
    def loss_is_log_loss(self) -> bool:
        return type(self).loss is Classify.loss and not self.label_smoothing and self._weights is None and self.focal is None

    def joins(self, batch: Batch) -> bool:
        return type(self).loss is Classify.loss and "mix" not in batch

    def rows(self, output: Tensor, batch: Batch, scratch: Scratch) -> ClassRows | None:
        return class_rows(output, batch["y"], scratch=scratch) if self.loss_is_log_loss else None

    def _of_rows(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the weight of each row."""
        table = None if self._weights is None else self._weights.on(logits)
        losses = F.cross_entropy(logits, target, table, reduction="none", label_smoothing=self.label_smoothing)
        if self.focal is not None:
            losses = losses * focal_factor(logits, target, self.focal)
        weights = losses.detach() if table is None else table[target]
        return (losses, weights) if losses.dim() == 1 else (losses.flatten(1).sum(1), weights.flatten(1).sum(1))

    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None:
        logits, target = checked_targets(self.name, output, batch)
        if target.is_floating_point() or target.is_complex():
            raise ModelError(
                f"classify needs integer labels in 'y', got {target.dtype}: use objective: regress for measured values, "
                "or store the labels as integers"
            )
        if logits.shape != (len(target), *logits.shape[1:2], *target.shape[1:]) or logits.dim() < 2:
            raise ModelError(
                f"classify needs logits of shape [rows, classes] for labels {shown(target)}, got {shown(logits)}: "
                "the model must return one number per class, and 'y' must have one integer per row"
            )
        columns = logits.shape[1]
        if outputs is not None and columns < outputs:
            raise ModelError(
                f"the data has {outputs} classes but the model returns {columns} columns: make its last layer {outputs} wide"
            )
        if self._weights is not None and len(self._weights) != columns:
            raise ModelError(
                f"class_weights has {len(self._weights)} weights, but the model returns {columns} columns: give one each"
            )
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= columns:
            raise ModelError(
                f"the labels are {low} to {high}, but the model returns {columns} columns, for labels 0 to {columns - 1}: "
                f"make its last layer {high + 1} wide, or number the classes from 0"
            )

    def outputs_for(
        self, *, classes: int | None = None, target_shape: Sequence[int] = (), vocabulary: int | None = None
    ) -> int:
        if classes is None:
            raise DataError(
                "classify needs integer labels, but 'y' has no classes: store whole numbers as integers (y.astype('int64')), "
                "set classes for a stream, or use objective: regress for measured values"
            )
        return classes

    def meter(self, device: torch.device) -> Meter:
        return JoinedMeter(SumMeter(device, _measure, _finish, of_rows), device, self)

    def decode(self, output: Tensor) -> dict[str, Tensor]:
        probabilities = full_precision(output).softmax(1)
        best = probabilities.max(1)
        return {"prediction": best.indices, "probability": best.values, "probabilities": probabilities}


def _measure(output: Tensor, batch: Batch) -> dict[str, Tensor | float]:
    target = batch["y"]
    return {"correct": (highest_place(output, 1) == target).sum(), "count": float(target.numel())}


def _finish(total: Mapping[str, float]) -> dict[str, float]:
    return {"loss": ratio(total["loss"], total["weight"]), "accuracy": ratio(total["correct"], total["count"])}
