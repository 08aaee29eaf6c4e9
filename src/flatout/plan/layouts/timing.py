"""Seconds of a step: work of the slowest stage, the pipeline bubble, and communication that is not hidden."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flatout.plan.layouts import constants
from flatout.plan.layouts.collectives import Network
from flatout.plan.layouts.kinds import DeviceKind
from flatout.plan.layouts.layout import ParallelLayout
from flatout.plan.layouts.memory import PipelineRank, held, parts
from flatout.plan.layouts.shape import BlockShape, PassWork, Shape, grouped

_REDUCED_BYTES = 4  # gradients are summed in fp32
_GATHERS = 4  # collectives of a block per pass: before and after attention, before and after the MLP


@dataclass(frozen=True)
class Constants:
    """The fitted constants, so that a fit can try others."""

    product_share: float = constants.PRODUCT_SHARE
    float8_gain: float = constants.FLOAT8_GAIN
    eager_traffic: float = constants.EAGER_TRAFFIC


@dataclass(frozen=True)
class Times:
    """Seconds of a step. `communication_s`: all of it, hidden or not; `exposed_s`: what the devices wait for."""

    compute_s: float
    bubble_s: float
    exposed_s: float
    communication_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.bubble_s + self.exposed_s + self.update_s

    @property
    def communication_share(self) -> float:
        return self.exposed_s / self.step_s


@dataclass(frozen=True)
class _Pass:
    """One micro-batch through a pipeline rank."""

    compute_s: float = 0.0
    exposed_s: float = 0.0
    communication_s: float = 0.0

    def plus(self, compute_s: float, exposed_s: float = 0.0, communication_s: float = 0.0) -> _Pass:
        return _Pass(self.compute_s + compute_s, self.exposed_s + exposed_s, self.communication_s + communication_s)


def times_of(
    shape: Shape,
    layout: ParallelLayout,
    batch: int,
    kind: DeviceKind,
    network: Network,
    fitted: Constants | None = None,
    compute_bytes: int = 2,
) -> Times:
    clock = _Clock(layout, kind, network, fitted or Constants(), compute_bytes)
    every = parts(shape, layout)
    passes = [clock.micro_batch(part) for part in every]
    slowest = max(passes, key=lambda one: one.compute_s + one.exposed_s)
    count = layout.micro_batches(batch)
    sent_s = clock.sent_s(shape)
    idle = (layout.pipeline - 1) / layout.chunks
    around = [clock.around(part, one) for part, one in zip(every, passes, strict=True)]
    exposed_s, total_s = max(around)
    each_s = slowest.compute_s + slowest.exposed_s
    weights = max(part.weights(layout) for part in every)
    return Times(
        compute_s=count * slowest.compute_s,
        bubble_s=idle * each_s,
        exposed_s=count * slowest.exposed_s + exposed_s + 2 * idle * sent_s,
        communication_s=count * (slowest.communication_s + 2 * layout.chunks * sent_s) + total_s,
        update_s=weights / layout.shard * constants.UPDATE_PASSES_BYTES / (kind.bytes_per_s * constants.FUSED_TRAFFIC),
    )


@dataclass(frozen=True)
class _Clock:
    layout: ParallelLayout
    kind: DeviceKind
    network: Network
    fitted: Constants
    compute_bytes: int

    def micro_batch(self, part: PipelineRank) -> _Pass:
        """Forward and backward of its blocks. Gathering weights and reducing gradients overlap with the work."""
        done = _Pass()
        for block, count in grouped(part.blocks):
            forward_s, backward_s = self._forward(block), self._backward(block)
            gather_s, reduce_s = self._sharding(block)
            tensor_s, waited_s = self._exchanges(block, forward_s + backward_s)
            hidden = gather_s + gather_s + reduce_s
            exposed = max(0.0, gather_s - forward_s) + max(0.0, gather_s + reduce_s - backward_s)
            done = done.plus(count * (forward_s + backward_s), count * (exposed + waited_s), count * (hidden + tensor_s))
        for end in part.ends:
            loss = end is part.last
            done = done.plus(self._work(end.forward, compiled=self._end_compiled(loss), float8=False))
            done = done.plus(self._work(end.backward, compiled=self._end_compiled(loss), float8=False))
        return done

    def _end_compiled(self, loss: bool) -> bool:
        return self.layout.compiled_loss if loss else self.layout.compiled

    def _forward(self, block: BlockShape) -> float:
        return self._work(block.forward, compiled=self.layout.compiled, float8=self.layout.float8)

    def _backward(self, block: BlockShape) -> float:
        """Including recomputing."""
        again = PassWork()
        if self.layout.recompute == "full":
            again = block.forward
        elif self.layout.recompute == "selective":
            again = replace(block.forward, product_flops=block.selective_flops, attention_flops=0.0)
        how = {"compiled": self.layout.compiled, "float8": self.layout.float8}
        return self._work(block.backward, **how) + self._work(again, **how)

    def _work(self, work: PassWork, *, compiled: bool, float8: bool) -> float:
        """This device's part of a micro-batch: at least the time of launching its operators."""
        piece = self.layout.micro_batch / self.layout.tensor
        products = self.kind.matmul_flops * self.kind.power * self.fitted.product_share
        products *= self.fitted.float8_gain if float8 else 1.0
        share, traffic, calls = self.fitted.eager_traffic, work.traffic_bytes, work.operators
        if compiled:
            share, traffic, calls = constants.FUSED_TRAFFIC, work.fused_traffic_bytes, work.fused_operators
        busy_s = work.product_flops / products + work.attention_flops / (self.kind.attention_flops * self.kind.power)
        busy_s += traffic / (self.kind.bytes_per_s * share)
        return max(piece * busy_s, calls * constants.CALL_S)

    def _sharding(self, block: BlockShape) -> tuple[float, float]:
        """Time to gather a block's weights, and to reduce-scatter its gradients; a pipeline does it once per step."""
        if self.layout.shard == 1 or self.layout.pipeline > 1:
            return 0.0, 0.0
        group, weights = self.network.group(self.layout, "shard"), held(block, self.layout)
        return group.all_gather_s(self.compute_bytes * weights), group.all_gather_s(_REDUCED_BYTES * weights)

    def _exchanges(self, block: BlockShape, work_s: float) -> tuple[float, float]:
        """Tensor and sequence parallelism: all communication, and the part that is waited for."""
        if self.layout.tensor == 1:
            return 0.0, 0.0
        again = {"none": 0, "selective": _GATHERS // 2, "full": _GATHERS}[self.layout.recompute]
        count = 2 * _GATHERS + again
        whole_bytes = block.output_bytes * self.layout.micro_batch
        each_s = self.network.group(self.layout, "tensor").all_gather_s(whole_bytes)
        # with several rows the pieces are not contiguous: data gathered along the sequence is copied into place
        copied = 2 * whole_bytes / (self.kind.bytes_per_s * constants.FUSED_TRAFFIC) if self.layout.micro_batch > 1 else 0.0
        waited_s = count * each_s
        if self.layout.async_tensor:  # in the forward all pieces but the first arrive during work on the previous one
            first_s = each_s / self.layout.tensor
            behind_s = first_s + max(0.0, each_s - first_s - work_s / count)
            waited_s -= _GATHERS * (each_s - behind_s)
        return count * each_s, waited_s + count * copied

    def sent_s(self, shape: Shape) -> float:
        """Send an activation to the next stage, or its gradient back."""
        handed = max(block.output_bytes for block in shape.blocks) * self.layout.micro_batch / self.layout.tensor
        return self.network.group(self.layout, "pipeline").send_s(handed)

    def around(self, part: PipelineRank, done: _Pass) -> tuple[float, float]:
        """Once per step: exposed and total. Gradients are reduced during the last backward, except for the last piece."""
        layout = self.layout
        shard, data = self.network.group(layout, "shard"), self.network.group(layout, "data")
        ends = sum(held(block, layout) for block in part.ends)
        blocks = part.weights(layout) - ends
        largest = max((held(block, layout) for block, _ in grouped(part.blocks)), default=0.0)
        exposed = total = 0.0
        if layout.shard > 1:
            whole = blocks if layout.pipeline > 1 else largest  # a pipeline gathers everything first and scatters it last
            edges = sum(shard.all_gather_s(size * (ends + whole)) for size in (self.compute_bytes, _REDUCED_BYTES))
            exposed, total = exposed + edges, total + edges
        if layout.data > 1:
            summed = data.all_reduce_s(_REDUCED_BYTES * (blocks + ends) / layout.shard)
            tail = data.all_reduce_s(_REDUCED_BYTES * max(largest, ends) / layout.shard)
            exposed += min(summed, tail + max(0.0, summed - tail - 2 / 3 * done.compute_s))
            total += summed
        return exposed, total
