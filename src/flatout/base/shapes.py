"""What a model must know about its data: shapes and sizes, shared by data and models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shapes:
    input_shape: tuple[int, ...]  # of one row of x as the model receives it
    outputs: int  # number of classes, labels or regression columns
    vocabulary: int | None = None
    window: int | None = None
    cardinalities: tuple[int, ...] | None = None  # number of distinct values in each column of `categories`
