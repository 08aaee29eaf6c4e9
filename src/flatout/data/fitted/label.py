"""The label that a table was trained to predict: classes with names, or a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flatout.data.fitted.values import Array, Values

MISSING, UNKNOWN = -1, -2


@dataclass(frozen=True)
class Label:
    """`classes` are the names of the classes, in the order of their ids; None where the label is a number, which has a `mean`
    and a `deviation` over the training rows."""

    name: str
    classes: tuple[str, ...] | None
    mean: float | None = None
    deviation: float | None = None

    @property
    def class_count(self) -> int | None:
        return None if self.classes is None else len(self.classes)

    @property
    def scale(self) -> tuple[float, float] | None:
        return None if self.mean is None or self.deviation is None else (self.mean, self.deviation)

    def encode(self, values: Values) -> Array:
        """int64 class ids, MISSING or UNKNOWN where there is none; or float32, NaN where missing."""
        if self.classes is None:
            return values.numbers(self.name).astype(np.float32)
        codes, texts = values.texts(self.name)
        ids = [MISSING if text is None else self._ids.get(text, UNKNOWN) for text in texts]
        return np.array(ids, dtype=np.int64)[codes]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Label:
        classes = None if written["classes"] is None else tuple(written["classes"])
        return cls(written["name"], classes, written.get("mean"), written.get("deviation"))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.classes or ())}
