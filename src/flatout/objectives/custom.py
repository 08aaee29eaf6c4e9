"""A user's function: (model, batch) -> (loss_sum, weight)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from flatout.base.errors import ModelError
from flatout.objectives.inputs import Batch
from flatout.objectives.metrics import SumMeter, ratio
from flatout.objectives.objective import Loss, LossFunction, Meter, Objective, shown

_FORM = "a custom objective returns (loss_sum, weight): the sum of the losses in the batch and their number"


@dataclass(frozen=True)
class Custom(Objective):
    """The function calls the model itself, so `forward` returns the loss. Predictions use `inputs`."""

    function: LossFunction = field(kw_only=True)

    name: ClassVar[str] = "custom"
    metric: ClassVar[str] = "loss"
    better: ClassVar[Literal["max", "min"]] = "min"
    of_output: ClassVar[bool] = False

    @property
    def functions(self) -> tuple[LossFunction, ...]:
        return (self.function,)

    def forward(self, model: nn.Module, batch: Batch) -> Loss:
        return self.function(model, batch)

    def loss(self, output: Loss, batch: Batch) -> Loss:
        loss_sum, weight = output
        return loss_sum, weight

    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None:
        if not isinstance(output, tuple | list) or len(output) != 2:
            raise ModelError(f"{_FORM}; got {type(output).__name__}: write `return loss * n, n` if the loss is a mean over n")
        loss_sum, weight = output
        if not isinstance(loss_sum, Tensor) or loss_sum.dim() != 0 or not loss_sum.is_floating_point():
            came = f"{shown(loss_sum)} of {loss_sum.dtype}" if isinstance(loss_sum, Tensor) else type(loss_sum).__name__
            raise ModelError(f"{_FORM}; loss_sum must be a tensor with one real number, got {came}: add .sum()")
        if not isinstance(weight, Tensor | float | int) or (isinstance(weight, Tensor) and weight.dim() != 0):
            came = f"a tensor {shown(weight)}" if isinstance(weight, Tensor) else type(weight).__name__
            raise ModelError(f"{_FORM}; weight must be a number or a tensor with one number, got {came}")
        if not float(weight) > 0:
            raise ModelError(f"{_FORM}; weight must be greater than 0, got {float(weight)}")

    def outputs_for(
        self, *, classes: int | None = None, target_shape: Sequence[int] = (), vocabulary: int | None = None
    ) -> int:
        return classes or vocabulary or math.prod(target_shape)

    def meter(self, device: torch.device) -> Meter:
        return SumMeter(device, lambda output, batch: {}, _finish)

    def decode(self, output: Any) -> dict[str, Tensor]:
        if isinstance(output, Mapping):
            return {name: value for name, value in output.items() if isinstance(value, Tensor)}
        if isinstance(output, Tensor):
            return {"output": output}
        raise ModelError(f"predictions need a tensor or a dict of tensors from the model, got {type(output).__name__}")


def _finish(total: Mapping[str, float]) -> dict[str, float]:
    return {"loss": ratio(total["loss"], total["weight"])}
