"""Measured values: squared, absolute or Huber loss; RMSE, mean absolute error and R2."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.base.errors import ModelError, UsageError
from flatout.base.specs import pick
from flatout.objectives.inputs import Batch
from flatout.objectives.joining import JoinedMeter
from flatout.objectives.metrics import Spread, SumMeter, accumulator, r_squared, ratio
from flatout.objectives.objective import Loss, Meter, Objective, Task, checked_targets, full_precision, shown

LOSSES: Mapping[str, Callable[..., Tensor]] = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}
_COLUMNS = "<columns>"  # statistics per column of y, kept in addition to the sums


@dataclass(frozen=True)
class Regress(Objective):
    """Values [rows] or [rows, columns]; a last axis of 1 on either side is fine. The loss is the mean over columns.

    With `centre` and `spread` the model predicts (y - centre) / spread. The loss uses that scale; predictions and all other
    metrics are in the units of y. None: values from the training data if it has them (tables do), else 0 and 1.
    """

    error: str = "mse"
    centre: float | None = None
    spread: float | None = None

    name: ClassVar[str] = "regress"
    metric: ClassVar[str] = "rmse"
    better: ClassVar[Literal["max", "min"]] = "min"
    task: ClassVar[Task | None] = "values"

    def __post_init__(self) -> None:
        pick(LOSSES, self.error, "regress error")
        for name, value in (("centre", self.centre), ("spread", self.spread)):
            if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
                raise UsageError(f"regress: {name} must be a number, got {value!r}")
        if self.spread is not None and not self.spread > 0:
            raise UsageError(f"regress: spread must be greater than 0, got {self.spread}")

    def scaled(self, centre: float, spread: float) -> Regress:
        """Use these values where the recipe sets none."""
        return replace(
            self,
            centre=centre if self.centre is None else self.centre,
            spread=spread if self.spread is None else self.spread,
        )

    def loss(self, output: Tensor, batch: Batch) -> Loss:
        values, target = _aligned(output, batch)
        if self._is_scaled:
            target = (target - self._centre) / self._spread
        return LOSSES[self.error](values, target, reduction="sum"), float(target.numel())

    def joins(self, batch: Batch) -> bool:
        return type(self).loss is Regress.loss

    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None:
        values, target = checked_targets(self.name, output, batch)
        # [rows, 1] against [rows] would silently broadcast to [rows, rows]: shapes must agree except for a last axis of 1
        if _without_last_one(values) != _without_last_one(target):
            wide = math.prod(target.shape[1:])
            raise ModelError(
                f"regress needs one value for each target {shown(target)}, got {shown(values)}: make the last layer {wide} wide"
            )

    def outputs_for(
        self, *, classes: int | None = None, target_shape: Sequence[int] = (), vocabulary: int | None = None
    ) -> int:
        return math.prod(target_shape)

    def meter(self, device: torch.device) -> Meter:
        return JoinedMeter(_RegressMeter(device, self._real), device, self)

    def in_units(self, output: Any) -> Any:
        return self._real(full_precision(output)) if isinstance(output, Tensor) and self._is_scaled else output

    def decode(self, output: Tensor) -> dict[str, Tensor]:
        return {"prediction": self._real(full_precision(output).reshape(_without_last_one(output)))}

    @property
    def _centre(self) -> float:
        return self.centre or 0.0

    @property
    def _spread(self) -> float:
        return self.spread or 1.0

    @property
    def _is_scaled(self) -> bool:
        return (self._centre, self._spread) != (0.0, 1.0)

    def _real(self, values: Tensor) -> Tensor:
        """The model's prediction in the units of y."""
        return values * self._spread + self._centre if self._is_scaled else values


class _RegressMeter:
    def __init__(self, device: torch.device, real: Callable[[Tensor], Tensor]) -> None:
        self._device = device
        self._sums = SumMeter(device, _measure, _finish)
        self._real = real
        self._residual: Tensor | None = None
        self._spread = Spread()

    def update(self, output: Tensor, loss_sum: Tensor, weight: float | Tensor, batch: Batch) -> None:
        output = self._real(full_precision(output))
        self._sums.update(output, loss_sum, weight, batch)
        values, target = (side.flatten(1) if side.dim() > 1 else side[:, None] for side in _aligned(output, batch))
        residual = (values - target).to(accumulator(target.device)).square().sum(0)
        self._residual = residual if self._residual is None else self._residual + residual
        self._spread.update(target)

    def result(self) -> dict[str, float]:
        if self._residual is None:
            return {}
        return {**self._sums.result(), "r2": r_squared(self._residual, self._spread.squares).item()}

    def collected(self) -> dict[str, Tensor]:
        if self._residual is None:
            return {}
        spread = {"count": torch.tensor(self._spread.count), "mean": self._spread.mean, "squares": self._spread.squares}
        columns = {"residual": self._residual, **spread}
        return {**self._sums.collected(), **{_COLUMNS + name: value for name, value in columns.items()}}

    def put_together(self, shares: Sequence[Mapping[str, Tensor]]) -> None:
        self._residual, self._spread = None, Spread()
        sums = []
        for share in shares:
            residual, mean, squares = (share[_COLUMNS + name].to(self._device) for name in ("residual", "mean", "squares"))
            self._residual = residual if self._residual is None else self._residual + residual
            self._spread.merge(int(share[_COLUMNS + "count"]), mean, squares)
            sums.append({name: value for name, value in share.items() if not name.startswith(_COLUMNS)})
        self._sums.put_together(sums)


def _aligned(output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    values = full_precision(output)
    target = batch["y"]
    return values.reshape(target.shape), target.to(values.dtype)


def _without_last_one(tensor: Tensor) -> torch.Size:
    return tensor.shape[:-1] if tensor.dim() > 1 and tensor.shape[-1] == 1 else tensor.shape


def _measure(output: Tensor, batch: Batch) -> dict[str, Tensor | float]:
    values, target = _aligned(output, batch)
    apart = (values - target).to(accumulator(target.device))
    return {"squared": apart.square().sum(), "absolute": apart.abs().sum(), "count": float(target.numel())}


def _finish(total: Mapping[str, float]) -> dict[str, float]:
    return {
        "loss": ratio(total["loss"], total["weight"]),
        "rmse": math.sqrt(ratio(total["squared"], total["count"])),
        "mae": ratio(total["absolute"], total["count"]),
    }
