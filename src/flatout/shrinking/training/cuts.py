"""A width of a model, and the places of its weights that depend on it."""

from __future__ import annotations

from dataclasses import dataclass, field

MODEL = "model."  # what names of the run's weights begin with in a package


@dataclass(frozen=True)
class Cut:
    """A place that depends on a width: dimension `dim` of a weight is `repeat` times all channels, each `block` numbers in a
    row. `queries`: the first one of so many parts are queries of attention, whose products are divided by the root of the
    width: 0 if none are."""

    weight: str
    dim: int
    block: int = 1
    repeat: int = 1
    queries: int = 0


@dataclass
class Width:
    """`makers`: places that make its channels, the layer's own first. `readers`: those of the layers that read them. A width of
    several layers, whose channels are added or multiplied, has the name of the first."""

    layer: str
    size: int
    makers: list[Cut] = field(default_factory=list)
    readers: list[Cut] = field(default_factory=list)
    why_not: str = ""

    def join(self, other: Width) -> None:
        """Their channels of the same number are one from here on."""
        self.makers += other.makers
        self.readers += other.readers
        self.why_not = self.why_not or other.why_not
