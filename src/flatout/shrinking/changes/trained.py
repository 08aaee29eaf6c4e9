"""The protocol of a change that trains: from a run's model to a smaller one with about the same answers, which learns first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from flatout.shrinking.training.lessons import Lessons


@dataclass(frozen=True)
class TrainedModel:
    """`notes`: facts for the receipt, such as what of the FLOPs is left and how long it learned."""

    model: nn.Module
    notes: dict[str, Any] = field(default_factory=dict)


class TrainedChange(ABC):
    """`values`: from the least that is cut to the most."""

    name: ClassVar[str]
    values: ClassVar[tuple[str, ...]]

    @abstractmethod
    def why_not(self, lessons: Lessons, value: str) -> str | None:
        """Why it does not apply to this model, in words; None if it does."""

    @abstractmethod
    def left(self, value: str) -> float:
        """The share of the model that stays, in FLOPs, weights or blocks."""

    @abstractmethod
    def samples(self, lessons: Lessons, value: str) -> int:
        """That the smaller model learns from, which says how long it takes."""

    @abstractmethod
    def make(self, lessons: Lessons, value: str) -> TrainedModel: ...
