"""Estimates the memory and speed of a layout."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.base.errors import UsageError
from flatout.plan.layouts.collectives import Network
from flatout.plan.layouts.constants import USABLE
from flatout.plan.layouts.kinds import DeviceKind, device_kind, link_named
from flatout.plan.layouts.layout import ParallelLayout
from flatout.plan.layouts.memory import DeviceMemory, memory_of
from flatout.plan.layouts.shape import Shape
from flatout.plan.layouts.timing import Constants, Times, times_of


@dataclass(frozen=True)
class Cluster:
    kind: DeviceKind
    network: Network

    @classmethod
    def of(cls, kind: str, inside: str | None = None, between: str | None = None, per_node: int | None = None) -> Cluster:
        """Links by name; None: the usual links of the device kind."""
        found = device_kind(kind)
        if per_node is not None and per_node < 1:
            raise UsageError(f"a node has at least 1 device, got {per_node}")
        network = Network(per_node or found.per_node, link_named(inside or found.inside), link_named(between or found.between))
        return cls(found, network)

    @property
    def usable_bytes(self) -> float:
        return self.kind.memory_bytes * USABLE


@dataclass(frozen=True)
class TrainingLoad:
    """The same for every layout: rows per step, optimizer state bytes per weight, bytes per computed number."""

    batch: int
    optimizer_bytes: int = 8
    compute_bytes: int = 2


@dataclass(frozen=True)
class Estimate:
    layout: ParallelLayout
    memory: DeviceMemory
    times: Times
    rate: float  # units per second, all devices together

    @property
    def per_device(self) -> float:
        return self.rate / self.layout.world


def estimate(
    shape: Shape, layout: ParallelLayout, training: TrainingLoad, cluster: Cluster, fitted: Constants | None = None
) -> Estimate:
    times = times_of(shape, layout, training.batch, cluster.kind, cluster.network, fitted, training.compute_bytes)
    memory = memory_of(
        shape, layout, training.batch, optimizer_bytes=training.optimizer_bytes, compute_bytes=training.compute_bytes
    )
    return Estimate(layout, memory, times, training.batch * shape.per_sample / times.step_s)
