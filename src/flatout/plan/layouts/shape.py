"""What a model costs: its parameters, the work of each block either way and the bytes that it keeps, all for one sample.

A block is what is gathered, recomputed and cut at: a layer of a transformer. `first` and `last` are what comes before and after
them, the loss included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PassWork:
    """One way through, for one sample. `traffic_bytes`: what operators other than products and attention read and write."""

    product_flops: float = 0.0
    attention_flops: float = 0.0
    traffic_bytes: float = 0.0
    fused_traffic_bytes: float = 0.0
    operators: float = 0.0  # of any number of samples
    fused_operators: float = 0.0

    def times(self, factor: float) -> PassWork:
        return PassWork(
            self.product_flops * factor, self.attention_flops * factor, self.traffic_bytes * factor,
            self.fused_traffic_bytes * factor, self.operators, self.fused_operators,
        )  # fmt: skip


@dataclass(frozen=True)
class SavedActivations:
    """Bytes for one sample. `transient_bytes`: made and dropped at the peak of its backward, the forward's apart.

    `compiled` differs: what no product touches stays in registers, and what the backward does not need is not kept.
    """

    saved_bytes: float = 0.0
    selective_bytes: float = 0.0
    transient_bytes: float = 0.0
    whole_bytes: float = 0.0  # its forward and backward at once, as when it is recomputed


@dataclass(frozen=True)
class BlockShape:
    parameters: int
    split_parameters: int  # of them, those that tensor parallelism divides
    forward: PassWork
    backward: PassWork
    output_bytes: float  # what it hands on, for one sample
    kept: SavedActivations
    compiled: SavedActivations
    selective_flops: float = 0.0  # of products that selective recomputing does again

    def kept_as(self, compiled: bool) -> SavedActivations:
        return self.compiled if compiled else self.kept


@dataclass(frozen=True)
class Shape:
    name: str
    first: BlockShape
    blocks: tuple[BlockShape, ...]
    last: BlockShape
    unit: str = "samples"
    per_sample: float = 1.0  # units in a sample, such as tokens
    tied_parameters: int = 0  # of `first`, which `last` uses too
    splits: Mapping[str, int] | None = field(default=None)  # what tensor parallelism has to divide; None: nobody knows how
    note: str = ""

    @property
    def parameters(self) -> int:
        """Numbers to train; a tied one counts once."""
        return sum(block.parameters for block in (self.first, *self.blocks, self.last))

    @property
    def flops_per_sample(self) -> float:
        every = (self.first, *self.blocks, self.last)
        return sum(w.product_flops + w.attention_flops for block in every for w in (block.forward, block.backward))


def grouped(blocks: Sequence[BlockShape]) -> list[tuple[BlockShape, int]]:
    """Blocks that are one object, with how many there are."""
    counts = Counter(id(block) for block in blocks)
    return [(block, counts.pop(id(block))) for block in blocks if id(block) in counts]
