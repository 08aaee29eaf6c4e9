"""Time of a collective: a latency per neighbour plus bytes over a rate (alpha and beta), on a ring that crosses nodes.

Mesh dimensions are placed on machines as torch does: tensor inside a node first, then shard, data and pipeline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatout.plan.layouts.kinds import Link
from flatout.plan.layouts.layout import ParallelLayout


@dataclass(frozen=True)
class DeviceGroup:
    """Devices that communicate with each other: `size` of them, `inside` of which are in one node."""

    size: int
    inside: int
    near: Link
    far: Link

    @property
    def nodes(self) -> int:
        return math.ceil(self.size / self.inside)

    @property
    def bytes_per_s(self) -> float:
        """Per device and direction. All devices of a node in the group share its outgoing links."""
        near, out = self.near.useful_bytes_per_s, self.inside * self.far.useful_bytes_per_s
        if self.nodes == 1:
            return near
        return min(near, out) if self.inside > 1 else out

    @property
    def latency_s(self) -> float:
        return (self.inside - 1) * self.near.latency_s + (self.nodes - 1) * self.far.latency_s

    def all_gather_s(self, whole_bytes: float) -> float:
        """All-gather, or reduce-scatter of as many bytes."""
        if self.size == 1:
            return 0.0
        return self.latency_s + whole_bytes * (self.size - 1) / self.size / self.bytes_per_s

    def all_reduce_s(self, whole_bytes: float) -> float:
        return 2 * self.all_gather_s(whole_bytes)

    def send_s(self, sent_bytes: float) -> float:
        """To the next device, which may be in another node."""
        link = self.far if self.nodes > 1 else self.near
        return 0.0 if self.size == 1 else link.latency_s + sent_bytes / link.useful_bytes_per_s


@dataclass(frozen=True)
class Network:
    per_node: int
    near: Link
    far: Link

    def group(self, layout: ParallelLayout, dimension: str) -> DeviceGroup:
        strides = {
            "tensor": 1,
            "shard": layout.tensor,
            "data": layout.tensor * layout.shard,
            "pipeline": layout.tensor * layout.shard * layout.data,
        }
        size = int(getattr(layout, dimension))
        return DeviceGroup(size, max(1, min(size, self.per_node // strides[dimension])), self.near, self.far)
