"""All layouts of a number of devices: the best way to run each, fastest first, and why others are not possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flatout.base.errors import UsageError
from flatout.base.units import show_bytes
from flatout.plan.layouts.estimate import Cluster, Estimate, TrainingLoad, estimate
from flatout.plan.layouts.layout import ParallelLayout, problem
from flatout.plan.layouts.shape import Shape

_CHUNKS = 2
_EQUAL = 0.99  # of a rate: a layout without recomputing is preferred to a hardly faster one


@dataclass(frozen=True)
class RejectedLayout:
    layout: ParallelLayout
    why: str
    least: Estimate | None = None  # if memory is the reason


@dataclass(frozen=True)
class Found:
    """`fitting` is sorted, fastest first."""

    fitting: tuple[Estimate, ...]
    rejected: tuple[RejectedLayout, ...]


def find_layouts(
    shape: Shape, training: TrainingLoad, cluster: Cluster, devices: int, base: ParallelLayout | None = None
) -> Found:
    """`base`: options common to all layouts, such as compiling."""
    if devices < 1:
        raise UsageError(f"expected at least 1 device, got {devices}")
    fitting, rejected = [], []
    for mesh in meshes(devices, base or ParallelLayout()):
        outcome = _best(shape, training, cluster, mesh)
        if isinstance(outcome, RejectedLayout):
            rejected.append(outcome)
        else:
            fitting.append(outcome)
    return Found(tuple(sorted(fitting, key=lambda one: (-one.rate, one.memory.used))), tuple(rejected))


def meshes(devices: int, base: ParallelLayout) -> Iterator[ParallelLayout]:
    """data x shard x tensor x pipeline = devices."""
    for pipeline in divisors(devices):
        for tensor in divisors(devices // pipeline):
            for shard in divisors(devices // pipeline // tensor):
                data = devices // pipeline // tensor // shard
                yield replace(base, data=data, shard=shard, tensor=tensor, pipeline=pipeline)


def divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def variants(mesh: ParallelLayout, batch: int) -> Iterator[ParallelLayout]:
    """Ways to run a mesh: schedules, micro-batch sizes, with and without recomputing."""
    rows = max(1, -(-batch // mesh.rows_split))
    schedules = [("1f1b", 1), ("interleaved", _CHUNKS)] if mesh.pipeline > 1 else [("1f1b", 1)]
    sizes = sorted({rows, *(2**power for power in range(rows.bit_length()) if rows % 2**power == 0)})
    for schedule, chunks in schedules:
        for recompute in ("none", "full"):
            for size in sizes:
                yield replace(mesh, schedule=schedule, chunks=chunks, recompute=recompute, micro_batch=size)


def _best(shape: Shape, training: TrainingLoad, cluster: Cluster, mesh: ParallelLayout) -> Estimate | RejectedLayout:
    possible: list[Estimate] = []
    why = ""
    for layout in variants(mesh, training.batch):
        found = problem(shape, layout, training.batch, cluster.network.per_node)
        if found is None:
            possible.append(estimate(shape, layout, training, cluster))
        elif not why:
            why = found
    if not possible:
        return RejectedLayout(mesh, why)
    fitting = [one for one in possible if one.memory.reserved <= cluster.usable_bytes]
    if fitting:
        enough = _EQUAL * max(one.rate for one in fitting)
        plain = [one for one in fitting if one.rate >= enough]
        return max(plain, key=lambda one: (one.layout.recompute == "none", one.rate, -one.memory.used))
    least = min(possible, key=lambda one: one.memory.used)
    needed, there = show_bytes(least.memory.reserved), show_bytes(cluster.usable_bytes)
    return RejectedLayout(least.layout, f"needs at least {needed} per device; {there} are usable", least)
