"""Labels of images to targets: words to their place among the class names, integers as they are, others as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DataError


class Labels:
    """What labels mean, settled on the training files: the same for validation and test.

    `names` are the class names, None where labels are numbers; `classes` is None where they are not whole numbers.
    """

    def __init__(self, names: tuple[str, ...] | None, classes: int | None) -> None:
        self.names = names
        self.classes = classes

    @classmethod
    def of(cls, targets: Sequence[Any], classes: int | Sequence[str] | None = None, *, words: bool = False) -> Labels:
        """By the targets, or given: the class names in order, or their number. `words`: labels are names even if digits."""
        if classes is not None and not isinstance(classes, int):
            names = tuple(str(name) for name in classes)
            if len(set(names)) != len(names):
                raise DataError(f"classes: a name occurs twice in {list(names)}")
            return cls(names, len(names))
        numbers = None if words else _numbers(targets)
        if numbers is None:
            names = tuple(sorted({str(target) for target in targets}))
            if isinstance(classes, int) and classes != len(names):
                raise DataError(f"classes={classes}, but the labels are {len(names)} different words: {_few(names)}")
            return cls._checked(names, len(names), classes)
        if not all(number.is_integer() for number in numbers):
            return cls(None, None)
        if min(numbers) < 0:
            raise DataError(f"labels that are whole numbers are classes, counted from 0; got {int(min(numbers))}")
        return cls._checked(None, classes or int(max(numbers)) + 1, classes)

    @classmethod
    def _checked(cls, names: tuple[str, ...] | None, count: int, told: int | None) -> Labels:
        if count < 2 and told is None:
            what = repr(names[0]) if names else "0"
            raise DataError(f"images: all have the same label, {what}: expected two classes or more")
        return cls(names, count)

    def targets(self, written: Sequence[Any], where: Sequence[str]) -> Tensor:
        """int64 classes or float32 numbers; DataError names the first file with an unknown label."""
        if self.names is not None:
            places = {name: place for place, name in enumerate(self.names)}
            for target, file in zip(written, where, strict=True):
                if str(target) not in places:
                    raise DataError(f"{file} has label {str(target)!r}, which is not one of the classes: {_few(self.names)}")
            return torch.tensor([places[str(target)] for target in written], dtype=torch.int64)
        numbers = _numbers(written)
        if numbers is None:
            file = next(file for target, file in zip(written, where, strict=True) if _number(target) is None)
            raise DataError(f"{file} has a label that is not a number; the training labels are numbers")
        if self.classes is None:
            return torch.tensor(numbers, dtype=torch.float32)
        for number, file in zip(numbers, where, strict=True):
            if not (number.is_integer() and 0 <= number < self.classes):
                raise DataError(f"{file} has label {number:g}; expected 0 to {self.classes - 1} (classes={self.classes})")
        return torch.tensor(numbers, dtype=torch.int64)


def _numbers(targets: Sequence[Any]) -> list[float] | None:
    """None unless all are numbers."""
    numbers = [_number(target) for target in targets]
    return None if None in numbers else [number for number in numbers if number is not None]


def _number(target: Any) -> float | None:
    try:
        number = float(target)
    except (TypeError, ValueError):
        return None
    return number if number - number == 0 else None  # neither infinite nor NaN


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
