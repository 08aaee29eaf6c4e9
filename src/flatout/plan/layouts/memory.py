"""Memory of one device at the peak of a step, part by part, for the pipeline rank that needs the most."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.plan.layouts.constants import RESERVED
from flatout.plan.layouts.layout import ParallelLayout, cut
from flatout.plan.layouts.shape import BlockShape, Shape, grouped

_MASTER = 4  # bytes of a weight and of its gradient, both in fp32
_AHEAD = 2  # blocks with gathered weights besides the current one


@dataclass(frozen=True)
class DeviceMemory:
    parameters: float
    gradients: float
    optimizer: float
    gathered: float  # gathered weights and not yet reduced gradients
    activations: float
    transient: float  # of the block or loss at the peak

    @property
    def used(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.gathered + self.activations + self.transient

    @property
    def reserved(self) -> float:
        """Including memory that the allocator can't reuse."""
        return self.used * RESERVED


@dataclass(frozen=True)
class PipelineRank:
    """Contents of a pipeline rank: the blocks of its stages, and the first or last layers."""

    rank: int
    stages: tuple[tuple[BlockShape, ...], ...]
    first: BlockShape | None
    last: BlockShape | None

    @property
    def blocks(self) -> tuple[BlockShape, ...]:
        return tuple(block for stage in self.stages for block in stage)

    @property
    def ends(self) -> tuple[BlockShape, ...]:
        return tuple(block for block in (self.first, self.last) if block is not None)

    def weights(self, layout: ParallelLayout) -> float:
        """Before sharding."""
        return sum(count * held(block, layout) for block, count in grouped((*self.blocks, *self.ends)))


def parts(shape: Shape, layout: ParallelLayout) -> list[PipelineRank]:
    counts = cut(len(shape.blocks), layout.stages)
    starts = [sum(counts[:stage]) for stage in range(layout.stages)]
    stages = [shape.blocks[start : start + count] for start, count in zip(starts, counts, strict=True)]
    ranks = range(layout.pipeline)
    return [
        PipelineRank(
            rank, tuple(stages[rank :: layout.pipeline]), shape.first if rank == 0 else None,
            shape.last if rank == layout.pipeline - 1 else None,
        )
        for rank in ranks
    ]  # fmt: skip


def in_flight(layout: ParallelLayout, rank: int, micro_batches: int) -> list[int]:
    """Micro-batches whose activations each stage of a rank holds at once."""
    if layout.pipeline == 1:
        return [1]
    if layout.schedule == "gpipe":
        return [micro_batches]
    if layout.chunks == 1:
        return [min(micro_batches, layout.pipeline - rank)]
    ahead = (layout.chunks - 1) * layout.pipeline + 2 * (layout.pipeline - rank - 1) + 1
    each = min(micro_batches, -(-ahead // layout.chunks))
    return [each] * layout.chunks


def memory_of(
    shape: Shape, layout: ParallelLayout, batch: int, *, optimizer_bytes: int = 8, compute_bytes: int = 2
) -> DeviceMemory:
    """`optimizer_bytes` per weight: 8 for Adam, 4 for momentum. For the rank that needs the most."""
    every = [_of_part(shape, part, layout, batch, optimizer_bytes, compute_bytes) for part in parts(shape, layout)]
    return max(every, key=lambda memory: memory.used)


def _of_part(
    shape: Shape, part: PipelineRank, layout: ParallelLayout, batch: int, optimizer_bytes: int, compute_bytes: int
) -> DeviceMemory:
    micro_batches = layout.micro_batches(batch)
    tied = shape.tied_parameters if layout.pipeline > 1 and part.last is not None and part.first is None else 0
    weights = part.weights(layout) + tied / layout.tensor
    shards = weights / layout.shard
    gathered, moving = _gathered(part, layout, weights, compute_bytes)
    activations = sum(
        count * layout.micro_batch * sum(same * _activations(block, layout) for block, same in grouped(stage))
        for stage, count in zip(part.stages, in_flight(layout, part.rank, micro_batches), strict=True)
    )
    largest = max((_transient(block, layout) for block, _ in grouped(part.blocks)), default=0.0)
    at_block = layout.micro_batch * largest + moving
    at_loss = 0.0 if part.last is None else layout.micro_batch * _loss(part.last, shape.blocks[-1], layout)
    return DeviceMemory(
        parameters=_MASTER * shards,
        gradients=_MASTER * shards,
        optimizer=optimizer_bytes * shards,
        gathered=gathered,
        activations=activations,
        transient=max(at_block, at_loss),
    )


def held(block: BlockShape, layout: ParallelLayout) -> float:
    """A block's weights on a device before sharding."""
    return block.parameters - block.split_parameters * (1 - 1 / layout.tensor)


def _gathered(part: PipelineRank, layout: ParallelLayout, weights: float, compute_bytes: int) -> tuple[float, float]:
    """Bytes kept during the whole step, and bytes during a block's backward."""
    copied = compute_bytes if compute_bytes < _MASTER else 0
    if layout.shard == 1:
        return copied * weights, 0.0
    largest = max((held(block, layout) for block, _ in grouped(part.blocks)), default=0.0)
    if layout.pipeline > 1:  # gathered from the first micro-batch to the last, gradients too
        return (compute_bytes + _MASTER) * weights, 0.0
    ends = compute_bytes * sum(held(block, layout) for block in part.ends)
    return ends + compute_bytes * largest, (_AHEAD * compute_bytes + compute_bytes + _MASTER) * largest


def _activations(block: BlockShape, layout: ParallelLayout) -> float:
    """Kept until the backward, per row. With tensor parallelism each device holds its piece of the sequence or its heads."""
    kept = block.kept_as(layout.compiled)
    if layout.recompute == "full":
        return block.output_bytes / layout.tensor
    if layout.recompute == "selective":
        return (kept.selective_bytes + block.output_bytes) / layout.tensor
    return kept.saved_bytes / layout.tensor + _whole_inputs(block, layout)


def _transient(block: BlockShape, layout: ParallelLayout) -> float:
    kept = block.kept_as(layout.compiled)
    if layout.recompute == "none":
        return kept.transient_bytes / layout.tensor + _whole_inputs(block, layout)
    there = kept.selective_bytes if layout.recompute == "selective" else 0.0
    return max(kept.whole_bytes - there, kept.transient_bytes) / layout.tensor + _whole_inputs(block, layout)


def _loss(last: BlockShape, before: BlockShape, layout: ParallelLayout) -> float:
    """For one row, from the first logit to the last gradient. Split by vocabulary, the input is gathered, and torch's loss for
    that holds one more tensor of logits in its backward: their exponentials, besides their sum."""
    whole = last.kept_as(layout.compiled_loss).whole_bytes / layout.tensor
    if layout.tensor == 1:
        return whole
    more = 0.0 if layout.compiled_loss else last.kept.transient_bytes / 2 / layout.tensor
    return whole + more + before.output_bytes * (1 - 1 / layout.tensor)


def _whole_inputs(block: BlockShape, layout: ParallelLayout) -> float:
    """Both halves of a block gather their input before splitting it."""
    return 2 * block.output_bytes * (1 - 1 / layout.tensor)
