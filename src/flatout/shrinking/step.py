"""One change of a model, as it is named everywhere; a candidate is a tuple of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ShrinkStep:
    """`floats`: layers that stay as they are."""

    change: str
    value: str
    floats: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        kept = f", {len(self.floats)} in float32" if self.floats else ""
        return f"{self.change.replace('_', ' ')}{f' {self.value}' if self.value else ''}{kept}"

    def to_dict(self) -> dict[str, Any]:
        return {"change": self.change, "value": self.value, "floats": list(self.floats)}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> ShrinkStep:
        return cls(written["change"], written["value"], tuple(written["floats"]))


ShrinkSteps = tuple[ShrinkStep, ...]


def named(state: ShrinkSteps) -> str:
    return ", then ".join(step.named for step in state)
