"""What a model needs to know of the data it will see: the one fact that data and models share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shapes:
    input_shape: tuple[int, ...]  # one row of x, as the model gets it
    outputs: int  # classes, labels or regression columns
    vocabulary: int | None = None
    window: int | None = None
    cardinalities: tuple[int, ...] | None = None  # how many values each column of `categories` has
