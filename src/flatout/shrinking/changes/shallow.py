"""A shallower twin of the run's model, which learns from it for as long as the run took: every other block is left out.

For rows of equal blocks, as transformers and residual networks have them. What stays starts from the teacher's weights.
"""

from __future__ import annotations

from typing import ClassVar

from flatout.shrinking.changes.trained import TrainedChange, TrainedModel
from flatout.shrinking.training.blocks import shallower
from flatout.shrinking.training.lessons import Lessons

_OF_THE_RUN = 1.0  # samples


class Shallow(TrainedChange):
    """The value says how many of the blocks are left."""

    name: ClassVar[str] = "shallow"
    values: ClassVar[tuple[str, ...]] = ("1/2", "1/3")

    def why_not(self, lessons: Lessons, value: str) -> str | None:
        return lessons.why_not_shallower

    def left(self, value: str) -> float:
        return 1 / int(value.removeprefix("1/"))

    def samples(self, lessons: Lessons, value: str) -> int:
        return round(_OF_THE_RUN * lessons.samples)

    def make(self, lessons: Lessons, value: str) -> TrainedModel:
        twin = shallower(lessons.model, lessons.blocks, self.left(value))
        return TrainedModel(*lessons.taught(twin, self.samples(lessons, value), 1.0))
