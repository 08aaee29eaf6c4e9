"""The interface of every objective: loss as sum and weight, checks of the model's output, metrics, predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from flatout.base.errors import DataError, ModelError, UsageError
from flatout.objectives.class_rows import ClassRows, Scratch
from flatout.objectives.inputs import Batch, Inputs

Loss = tuple[Tensor, float | Tensor]
LossFunction = Callable[[nn.Module, Batch], Loss]
Task = Literal["classes", "yes_no", "labels", "values", "tokens"]  # how metrics by name read the output and y

_OFF = "--off loss_head"


class Meter(Protocol):
    """Collects on the device without a sync; only `result` syncs."""

    def update(self, output: Any, loss_sum: Tensor, weight: float | Tensor, batch: Batch) -> None: ...

    def result(self) -> dict[str, float]: ...


class SharedMeter(Meter, Protocol):
    """A meter that can be split over processes: several meters, each with other rows, are combined into one."""

    def collected(self) -> dict[str, Tensor]:
        """Everything that `result` needs; empty if there were no rows."""
        ...

    def put_together(self, shares: Sequence[Mapping[str, Tensor]]) -> None:
        """Replace the state by that of all shares together. None of them is empty."""
        ...


def is_shared(meter: Meter) -> TypeGuard[SharedMeter]:
    """Whether `collected` and `put_together` exist and cover the whole meter: a subclass that overrides only `update` or
    `result` may collect more than they know of."""
    for kind in type(meter).__mro__:
        own = vars(kind)
        if "collected" in own and "put_together" in own:
            return True
        if "update" in own or "result" in own:
            return False
    return False


@dataclass(frozen=True)
class Objective(ABC):
    """The loss of a batch is loss_sum / weight, so any split of the batch gives the same loss and gradient."""

    inputs: Inputs = field(default_factory=Inputs)

    name: ClassVar[str]
    metric: ClassVar[str]
    better: ClassVar[Literal["max", "min"]]
    of_output: ClassVar[bool] = True  # the loss depends only on the model's output: computed where the last layer is
    task: ClassVar[Task | None] = None  # None: metrics by name decide by the shapes of the output and y

    @property
    def functions(self) -> tuple[LossFunction, ...]:
        """The user's functions that it calls: part of a run's identity."""
        return ()

    @property
    def ignored_target(self) -> int | None:
        """The value of y that does not count; None: there is none."""
        return None

    @property
    def loss_is_log_loss(self) -> bool:
        """Whether the loss sums -log p of what is true, each with the same weight: metrics need not compute it again."""
        return False

    def joins(self, batch: Batch) -> bool:
        """Whether the loss needs only the output and `y`, so that evaluation may compute it for several batches at once."""
        return False

    def rows(self, output: Any, batch: Batch, scratch: Scratch) -> ClassRows | None:
        """The output as rows of logits, if the loss sums -log p of their true classes, and one pass over them gives it together
        with what metrics read."""
        return None

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        return self.loss(self.forward(model, batch), batch)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return self.inputs.call(model, batch)

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return self.decode(self.inputs.call(model, batch))

    def with_loss_head(self, kind: str, model: nn.Module, device: torch.device) -> LossFunction:
        """The loss function of a training step, computed as the setting loss_head says. Evaluation does not use it."""
        if (why := self.why_no_loss_head(kind, model, device)) is not None:
            raise UsageError(why)
        return self

    def why_no_loss_head(self, kind: str, model: nn.Module, device: torch.device) -> str | None:
        """The reason as text; None if the loss can be computed that way."""
        return None if kind == "plain" else f"loss_head={kind} needs objective next_token, this is {self.name}: {_OFF}"

    @abstractmethod
    def loss(self, output: Any, batch: Batch) -> Loss:
        """The sum over the batch in float32 or higher, and the count: a float, or a device tensor if it depends on the data."""

    @abstractmethod
    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None:
        """Raise ModelError if output and targets do not match. `outputs` is the result of `outputs_for` for all the data."""

    @abstractmethod
    def outputs_for(
        self, *, classes: int | None = None, target_shape: Sequence[int] = (), vocabulary: int | None = None
    ) -> int:
        """The required width of the model's last layer. `target_shape` is the shape of one row of y."""

    @abstractmethod
    def meter(self, device: torch.device) -> Meter: ...

    def in_units(self, output: Any) -> Any:
        """The model's raw output in the units of y."""
        return output

    @abstractmethod
    def decode(self, output: Any) -> dict[str, Tensor]:
        """Result columns for people, from the model's raw output."""


def full_precision(values: Tensor) -> Tensor:
    """Half precision can't hold a sum over a batch, so this converts to float32 even under autocast."""
    return values if values.dtype == torch.float64 else values.float()


def checked_targets(name: str, output: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The model's output and y, after the checks that all objectives share."""
    if "y" not in batch:
        raise DataError(f"{name} needs targets in a column 'y'; the data has only {', '.join(batch)}")
    if not isinstance(output, Tensor):
        raise ModelError(
            f"{name} needs a tensor from the model, or an object or dict with 'logits'; got {type(output).__name__}: "
            "return the tensor from forward, or use a function (model, batch) -> (loss_sum, weight) as the objective"
        )
    if not output.is_floating_point():
        raise ModelError(f"{name} needs real numbers from the model, got {output.dtype}: return the logits, not their argmax")
    return output, batch["y"]


def shown(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"
