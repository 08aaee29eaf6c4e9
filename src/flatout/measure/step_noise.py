"""How far repeats of the baseline's step are apart: per kind of difference and per parameter, the largest of all repeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from flatout.measure.differences import Difference

APART = "apart"


@dataclass(frozen=True)
class StepNoise:
    """`repeats`: how many runs of the baseline were compared with its first one."""

    sizes: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by kind and place
    repeats: int = 0

    @classmethod
    def of(cls, found: Iterable[Difference]) -> StepNoise:
        """A difference too small to count has no length or direction, but it is apart."""
        return cls({(d.kind, d.at): 0.0 if d.is_noise and d.kind != APART else d.size for d in found}, 1)

    def with_more(self, other: StepNoise) -> StepNoise:
        sizes = {key: max(self.sizes.get(key, 0.0), other.sizes.get(key, 0.0)) for key in {*self.sizes, *other.sizes}}
        return StepNoise(sizes, self.repeats + other.repeats)

    def size(self, kind: str, at: str) -> float:
        return self.sizes.get((kind, at), 0.0)

    def usual(self, kind: str) -> float:
        """The median of all parameters: a small tensor may repeat itself by luck."""
        return median([size for (one, _), size in self.sizes.items() if one == kind] or [0.0])

    def to_list(self) -> list[list[Any]]:
        return [[kind, at, size] for (kind, at), size in self.sizes.items()]

    @classmethod
    def from_list(cls, written: Sequence[Sequence[Any]], repeats: int = 1) -> StepNoise:
        return cls({(kind, at): size for kind, at, size in written}, repeats)
