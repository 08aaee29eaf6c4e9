"""Chooses the layout for the present processes: full copies of the weights if they fit, else the fastest layout that does.

Uses the same estimates as for remote devices, with this machine's own memory, arithmetic and links.
"""

from __future__ import annotations

from typing import Any

from flatout.base.units import show_bytes
from flatout.engine.job import Job
from flatout.machine.ceilings import Ceilings
from flatout.plan.layouts.collectives import Network
from flatout.plan.layouts.estimate import Cluster, Estimate, TrainingLoad
from flatout.plan.layouts.fitting import LayoutChoice, state_bytes
from flatout.plan.layouts.jobs import shape_of_job
from flatout.plan.layouts.kinds import DeviceKind, Link
from flatout.plan.layouts.search import Found, find_layouts
from flatout.world.links import LinkRate, Links

_WORTH_A_TRIAL, _HOPELESS = 3, 0.5  # at most this many layouts, and none below this share of the best rate
_NEARLY = 0.95  # of the best rate: full copies are preferred, as estimates of gathering may be too low


def suggest(job: Job, devices: int, cluster: Cluster, *, compute_bytes: int) -> list[LayoutChoice]:
    """`data` and `shard` layouts, which work for any model; the best first, only those worth a trial."""
    batch = job.data.typical_batch(job.batch)[0]
    found = find_layouts(shape_of_job(job), TrainingLoad(batch, state_bytes(job), compute_bytes), cluster, devices)
    usual = [one for one in found.fitting if one.layout.tensor == one.layout.pipeline == 1]
    if not usual:
        return [LayoutChoice(f"shard={devices}", _nothing_fits(found, cluster))]
    usual = [one for one in usual if one.layout.recompute == "none"] or usual
    best = usual[0]
    copies = next((one for one in usual if one.layout.shard == 1), None)
    if copies is not None and copies.rate >= _NEARLY * best.rate:
        usual = [copies, *(one for one in usual if one is not copies)]
    return [
        LayoutChoice(one.layout.mesh, f"{_praise(one)}: {_needs(one, cluster)}", "default", _how(one, batch), one.times.step_s)
        for one in usual[:_WORTH_A_TRIAL]
        if one.rate >= _HOPELESS * best.rate
    ]


def _praise(one: Estimate) -> str:
    return "each device has a full copy" if one.layout.shard == 1 else "the fastest layout that should fit"


def cluster_of(name: str, memory_bytes: float, per_node: int, ceilings: Ceilings | None, links: Links, product: str) -> Cluster:
    """`product`: the format of its matrix products, by the name that the ceilings use."""
    rate = None if ceilings is None else ceilings.matmul_flops.get(product)
    copied = None if ceilings is None else ceilings.copy_bytes_per_s
    flops = 1e12 if rate is None else rate.value  # without measurements, layouts differ only in memory
    kind = DeviceKind(
        name, name, memory_bytes, 1e12 if copied is None else copied.value, flops, flops, flops / 2, "", "", per_node
    )
    return Cluster(kind, Network(per_node, _link("within", links.near), _link("between", links.far)))


def _link(name: str, measured: LinkRate) -> Link:
    return Link(name, measured.latency_s, measured.bytes_per_s, share=1.0)


def _how(one: Estimate, batch: int) -> dict[str, Any]:
    in_parts = one.layout.micro_batches(batch) > 1
    found: dict[str, Any] = {"micro_batch": one.layout.micro_batch} if in_parts else {}
    return found | ({"activation_checkpointing": True} if one.layout.recompute != "none" else {})


def _needs(one: Estimate, cluster: Cluster) -> str:
    return f"{show_bytes(one.memory.reserved)} of {show_bytes(cluster.kind.memory_bytes)} per device (estimate)"


def _nothing_fits(found: Found, cluster: Cluster) -> str:
    others = [one.layout.mesh for one in found.fitting[:1]]
    hint = f"; --mesh {others[0]} should fit" if others else ": use a smaller model or batch, or more devices"
    return f"needs the least memory, but probably does not fit {show_bytes(cluster.usable_bytes)} per device{hint}"
