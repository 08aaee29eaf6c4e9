"""A layout: how many ways each kind of parallelism splits the work, and how a device processes its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatout.plan.layouts.shape import Shape

SCHEDULES = ("gpipe", "1f1b", "interleaved")


@dataclass(frozen=True)
class ParallelLayout:
    """`data` copies, each sharded `shard` ways; blocks split `tensor` ways and cut into `pipeline` stages."""

    data: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    micro_batch: int = 1  # rows
    schedule: str = "1f1b"
    chunks: int = 1  # stages per device in the interleaved schedule
    recompute: str = "none"
    compiled: bool = False
    compiled_loss: bool = False
    float8: bool = False
    async_tensor: bool = False  # tensor-parallel communication overlaps with matrix products

    @property
    def world(self) -> int:
        return self.data * self.shard * self.tensor * self.pipeline

    @property
    def rows_split(self) -> int:
        """Ranks with different rows."""
        return self.data * self.shard

    @property
    def stages(self) -> int:
        return self.pipeline * self.chunks

    def micro_batches(self, batch: int) -> int:
        return math.ceil(math.ceil(batch / self.rows_split) / self.micro_batch)

    @property
    def mesh(self) -> str:
        """As --mesh takes it; "one device" for a single one."""
        dims = {"pipeline": self.pipeline, "data": self.data, "shard": self.shard, "tensor": self.tensor}
        return ",".join(f"{name}={size}" for name, size in dims.items() if size > 1) or "one device"


def problem(shape: Shape, layout: ParallelLayout, batch: int, per_node: int) -> str | None:
    """Why a layout is not possible; None if it is."""
    if layout.rows_split > batch:
        return f"a batch of {batch} has too few rows for {layout.rows_split} devices that need different rows"
    if layout.stages > len(shape.blocks):
        count = len(shape.blocks)
        return f"{layout.stages} pipeline stages, but the model has only {count} block{'s' * (count != 1)} to split"
    if layout.tensor > 1:
        if shape.splits is None:
            return "this model has no tensor plan, which tensor parallelism needs"
        for name, size in shape.splits.items():
            if size % layout.tensor:
                return f"{size} {name} are not divisible by tensor={layout.tensor}"
        if layout.tensor > per_node:
            return f"tensor={layout.tensor} does not fit in a node of {per_node} devices; it communicates in every block"
    if layout.schedule == "interleaved" and layout.pipeline > 1 and layout.micro_batches(batch) % layout.pipeline:
        return f"interleaved needs a multiple of {layout.pipeline} micro-batches, got {layout.micro_batches(batch)}"
    return None


def cut(blocks: int, stages: int) -> list[int]:
    """Blocks of each stage. The first stage gets no more than the others, as it also has the layers before the blocks."""
    each, more = divmod(blocks, stages)
    return [each + (1 if 0 < stage <= more else 0) for stage in range(stages)]
