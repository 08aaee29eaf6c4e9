"""What every objective answers: the loss as a sum and a weight, whether the model fits, the metrics, the predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from flatout.base.errors import DataError, ModelError, UsageError
from flatout.objectives.inputs import Batch, Inputs

Loss = tuple[Tensor, float | Tensor]
LossFunction = Callable[[nn.Module, Batch], Loss]

_OFF = "--off loss_head"


class Meter(Protocol):
    """Collects on the device without a sync; `result` is the one sync."""

    def update(self, output: Any, loss_sum: Tensor, weight: float | Tensor, batch: Batch) -> None: ...

    def result(self) -> dict[str, float]: ...


class SharedMeter(Meter, Protocol):
    """One whose rows may be shared out: several of them, each of other rows, are put together to one of all rows."""

    def collected(self) -> dict[str, Tensor]:
        """All that `result` is made of; empty where no row came."""
        ...

    def put_together(self, shares: Sequence[Mapping[str, Tensor]]) -> None:
        """From here on it is as if it had seen the rows of all shares, and nothing else. None of them is empty."""
        ...


def is_shared(meter: Meter) -> TypeGuard[SharedMeter]:
    """Whether `collected` and `put_together` are there and speak for all that it does: a subclass that only updates, or only
    finishes, in a way of its own may collect what they don't know of."""
    for kind in type(meter).__mro__:
        own = vars(kind)
        if "collected" in own and "put_together" in own:
            return True
        if "update" in own or "result" in own:
            return False
    return False


@dataclass(frozen=True)
class Objective(ABC):
    """The loss of a batch is loss_sum / weight, so any split of the batch adds up to the same number and gradient."""

    inputs: Inputs = field(default_factory=Inputs)

    name: ClassVar[str]
    metric: ClassVar[str]
    better: ClassVar[Literal["max", "min"]]
    of_output: ClassVar[bool] = True  # the loss follows from what the model gives: it may be computed where the last layer is

    @property
    def functions(self) -> tuple[LossFunction, ...]:
        """Code of the user's that it calls: part of what a run is known by."""
        return ()

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        return self.loss(self.forward(model, batch), batch)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return self.inputs.call(model, batch)

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return self.decode(self.inputs.call(model, batch))

    def with_loss_head(self, kind: str, model: nn.Module, device: torch.device) -> LossFunction:
        """What a step calls: the same loss, computed as the setting loss_head says. Evaluation goes by `forward` and `loss`."""
        if (why := self.why_no_loss_head(kind, model, device)) is not None:
            raise UsageError(why)
        return self

    def why_no_loss_head(self, kind: str, model: nn.Module, device: torch.device) -> str | None:
        """In words; None where the loss can be computed that way."""
        return None if kind == "plain" else f"loss_head={kind} is for next_token, and the objective is {self.name}: {_OFF}"

    @abstractmethod
    def loss(self, output: Any, batch: Batch) -> Loss:
        """The sum over the batch in float32 or finer, and of how many: a float, or a device tensor if only data knows."""

    @abstractmethod
    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None:
        """Raise ModelError in words where output and targets do not fit. `outputs`: what `outputs_for` said of all the data."""

    @abstractmethod
    def outputs_for(
        self, *, classes: int | None = None, target_shape: Sequence[int] = (), vocabulary: int | None = None
    ) -> int:
        """How wide the model's last layer should be. `target_shape` is that of one row of y."""

    @abstractmethod
    def meter(self, device: torch.device) -> Meter: ...

    def in_units(self, output: Any) -> Any:
        """The model's raw output in the units of y; the same, where these are no others."""
        return output

    @abstractmethod
    def decode(self, output: Any) -> dict[str, Tensor]:
        """Columns for people, from the model's raw output."""


def full_precision(values: Tensor) -> Tensor:
    """Half precision can't hold a sum over a batch, whatever autocast is on."""
    return values if values.dtype == torch.float64 else values.float()


def checked_targets(name: str, output: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The model's output and y, after the checks that all objectives share."""
    if "y" not in batch:
        raise DataError(f"{name} needs targets in a column 'y'; the data has {', '.join(batch)}")
    if not isinstance(output, Tensor):
        raise ModelError(
            f"{name} needs a tensor from the model, or an object or dict with 'logits'; got {type(output).__name__}: "
            "return the tensor from forward, or give a function (model, batch) -> (loss_sum, weight) as the objective"
        )
    if not output.is_floating_point():
        raise ModelError(f"{name} needs real numbers from the model, got {output.dtype}: return the logits, not their argmax")
    return output, batch["y"]


def shown(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"
