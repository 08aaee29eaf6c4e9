"""The cost of a model: its parameters, the work of each block in both passes and the bytes that it keeps, all per sample.

A block is the unit of gathering, recomputing and pipeline splits: a transformer layer. `first` and `last` are the layers before
and after the blocks, including the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PassWork:
    """One pass of one sample. `traffic_bytes`: read and written by operators other than products and attention."""

    product_flops: float = 0.0
    attention_flops: float = 0.0
    traffic_bytes: float = 0.0
    fused_traffic_bytes: float = 0.0
    operators: float = 0.0  # independent of the number of samples
    fused_operators: float = 0.0

    def times(self, factor: float) -> PassWork:
        return PassWork(
            self.product_flops * factor, self.attention_flops * factor, self.traffic_bytes * factor,
            self.fused_traffic_bytes * factor, self.operators, self.fused_operators,
        )  # fmt: skip


@dataclass(frozen=True)
class SavedActivations:
    """Bytes for one sample. `transient_bytes`: allocated and freed at the peak of its backward, without the forward's.

    `compiled` differs: values that no product uses stay in registers, and values that the backward does not need are not kept.
    """

    saved_bytes: float = 0.0
    selective_bytes: float = 0.0
    transient_bytes: float = 0.0
    whole_bytes: float = 0.0  # forward and backward together, as in recomputing


@dataclass(frozen=True)
class BlockShape:
    parameters: int
    split_parameters: int  # those that tensor parallelism divides
    forward: PassWork
    backward: PassWork
    output_bytes: float  # passed to the next block, per sample
    kept: SavedActivations
    compiled: SavedActivations
    selective_flops: float = 0.0  # of products that selective recomputing repeats

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
    tied_parameters: int = 0  # of `first`, shared with `last`
    splits: Mapping[str, int] | None = field(default=None)  # sizes that tensor parallelism divides; None: unknown
    note: str = ""

    @property
    def parameters(self) -> int:
        """Trained parameters; tied ones count once."""
        return sum(block.parameters for block in (self.first, *self.blocks, self.last))

    @property
    def flops_per_sample(self) -> float:
        every = (self.first, *self.blocks, self.last)
        return sum(w.product_flops + w.attention_flops for block in every for w in (block.forward, block.backward))


def grouped(blocks: Sequence[BlockShape]) -> list[tuple[BlockShape, int]]:
    """Blocks that are the same object, with their number."""
    counts = Counter(id(block) for block in blocks)
    return [(block, counts.pop(id(block))) for block in blocks if id(block) in counts]
