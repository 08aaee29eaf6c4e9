"""The inputs and outputs of a program: names, types and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Port:
    """One tensor. In `shape`, None is any size; dimension 0 is the rows of the batch."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Port:
        return cls(str(written["name"]), str(written["dtype"]), tuple(written["shape"]))
