"""The protocol of a change: from the float32 model of a package to another ONNX model that answers nearly the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from flatout.data.source import Batch

if TYPE_CHECKING:
    import onnx

    from flatout.shrinking.changes.ranges import Ranges


class Material(Protocol):
    """What a change is made from. `model` is a new copy each time: constants are folded, batch norm is part of convolutions."""

    @property
    def model(self) -> onnx.ModelProto: ...
    @property
    def calibrating(self) -> Batch: ...
    @property
    def tuning(self) -> Batch: ...

    def ranges(self, tensors: Sequence[str]) -> Ranges:
        """Of values inside of the model, on as many calibration rows as it takes."""
        ...

    def moments(self, tensors: Sequence[str]) -> Mapping[str, npt.NDArray[np.float64]]:
        """The mean of x xT over calibration rows, for the last dimension of these values; without those that are too wide."""
        ...

    def error_of(self, model: onnx.ModelProto) -> float:
        """The mean difference of its outputs from those of `model`, on tuning rows."""
        ...


@dataclass(frozen=True)
class ChangedModel:
    """`notes`: facts for the receipt, such as how many rows calibrated it."""

    model: onnx.ModelProto
    notes: dict[str, Any] = field(default_factory=dict)


class ModelChange(ABC):
    """`is_by_layer`: layers can stay float32, named in `floats`."""

    name: ClassVar[str]
    values: ClassVar[tuple[str, ...]] = ("",)
    is_by_layer: ClassVar[bool] = False
    only_for_size: ClassVar[bool] = False
    """Computes as before, from smaller weights."""
    comes_first: ClassVar[bool] = False
    """Others are tried on top of it, as they are on a smaller model that was trained."""

    @abstractmethod
    def why_not(self, model: onnx.ModelProto, value: str) -> str | None:
        """Why it does not apply to this model or machine, in words; None if it does."""

    @abstractmethod
    def make(self, material: Material, value: str, floats: Sequence[str]) -> ChangedModel: ...

    def layers(self, model: onnx.ModelProto) -> list[str]:
        """The layers that it changes, in order."""
        return []
