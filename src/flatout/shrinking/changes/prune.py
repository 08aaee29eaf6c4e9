"""Fewer channels and hidden units: those that matter least are cut out of every layer, and the rest is fine-tuned."""

from __future__ import annotations

from typing import ClassVar

from flatout.shrinking.changes.trained import TrainedChange, TrainedModel
from flatout.shrinking.training.lessons import Lessons
from flatout.shrinking.training.sizes import narrowed

_OF_THE_RUN = 0.5  # samples of the fine-tuning
_RATE = 0.5  # of the run's learning rate: the weights are nearly right


class Prune(TrainedChange):
    """The value says how much of the FLOPs goes."""

    name: ClassVar[str] = "prune"
    values: ClassVar[tuple[str, ...]] = ("50%", "70%", "85%")

    def why_not(self, lessons: Lessons, value: str) -> str | None:
        return lessons.why_not_narrower

    def left(self, value: str) -> float:
        return 1 - float(value.removesuffix("%")) / 100

    def samples(self, lessons: Lessons, value: str) -> int:
        return round(_OF_THE_RUN * lessons.samples)

    def make(self, lessons: Lessons, value: str) -> TrainedModel:
        smaller = narrowed(lessons.model, lessons.widths, lessons.worth, lessons.flops, self.left(value))
        return TrainedModel(*lessons.taught(smaller, self.samples(lessons, value), _RATE))
