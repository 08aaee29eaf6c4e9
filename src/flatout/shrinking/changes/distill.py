"""A narrower twin of the run's model, which learns from it for as long as the run took.

The twin has the same layers with all widths cut by one factor. It starts from the channels of the teacher that matter most: a
twin of a table's model with a quarter of the weights lost 0.4 points that way, and 2.0 with weights of its own.
"""

from __future__ import annotations

from typing import ClassVar

from flatout.shrinking.changes.trained import TrainedChange, TrainedModel
from flatout.shrinking.training.lessons import Lessons
from flatout.shrinking.training.sizes import narrowed, weights_of

_OF_THE_RUN = 1.0  # samples


class Distill(TrainedChange):
    """The value says how much of the weights is left."""

    name: ClassVar[str] = "distill"
    values: ClassVar[tuple[str, ...]] = ("1/2", "1/3", "1/4", "1/10")

    def why_not(self, lessons: Lessons, value: str) -> str | None:
        return lessons.why_not_taught or lessons.why_not_narrower

    def left(self, value: str) -> float:
        return 1 / int(value.removeprefix("1/"))

    def samples(self, lessons: Lessons, value: str) -> int:
        return round(_OF_THE_RUN * lessons.samples)

    def make(self, lessons: Lessons, value: str) -> TrainedModel:
        twin = narrowed(lessons.model, lessons.widths, lessons.worth, weights_of, self.left(value))
        return TrainedModel(*lessons.taught(twin, self.samples(lessons, value), 1.0))
