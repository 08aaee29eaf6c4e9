"""Layouts as one tree: memory, time and communication of each, fastest first, and why others are not possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_bytes, show_count, show_rate, show_seconds, show_share
from flatout.plan.layouts.estimate import Cluster, Estimate, TrainingLoad
from flatout.plan.layouts.layout import ParallelLayout
from flatout.plan.layouts.search import Found, RejectedLayout, find_layouts
from flatout.plan.layouts.shape import Shape

_SHOWN, _REASONS = 10, 6
_TOO_LARGE = "too large"

_COLUMNS = (
    TableColumn("mesh", "layout"),
    TableColumn("micro_batch", "micro-batch", right=True),
    TableColumn("how", "how"),
    TableColumn("memory_bytes", "memory/device", right=True),
    TableColumn("step_s", "step", right=True),
    TableColumn("communication_share", "communication", right=True),
    TableColumn("bubble_share", "idle", right=True),
    TableColumn("rate", "rate", right=True),
    TableColumn("parts", "parts of memory", shown=False),
    TableColumn("communication_s", "total communication", shown=False),
    TableColumn("schedule", "schedule", shown=False),
    TableColumn("recompute", "recompute", shown=False),
)


def explain_layouts(
    shape: Shape,
    *,
    batch: int,
    devices: int,
    device_kind: str,
    inside: str | None = None,
    between: str | None = None,
    per_node: int | None = None,
    compiled: bool = False,
    float8: bool = False,
    optimizer_bytes: int = 8,
) -> Doc:
    """`inside` and `between`: links inside a node and between nodes, by name; None: the usual ones."""
    cluster = Cluster.of(device_kind, inside, between, per_node)
    base = ParallelLayout(compiled=compiled, compiled_loss=compiled, float8=float8 and cluster.kind.float8)
    found = find_layouts(shape, TrainingLoad(batch, optimizer_bytes), cluster, devices, base)
    return view(shape, found, cluster, devices, batch)


def view(shape: Shape, found: Found, cluster: Cluster, devices: int, batch: int) -> Doc:
    rows = [_row(one, shape) for one in found.fitting]
    nodes: list[Node] = [
        TextLine(_headline(shape, found, cluster, devices), strong=True),
        TextLine(_setting(shape, cluster, batch)),
        Fields(
            {
                "model": shape.name, "parameters": shape.parameters, "devices": devices, "device_kind": cluster.kind.name,
                "inside": cluster.network.near.name, "between": cluster.network.far.name, "per_node": cluster.network.per_node,
                "batch": batch, "unit": shape.unit, "flops_per_sample": shape.flops_per_sample,
                "usable_bytes": cluster.usable_bytes,
            }
        ),
        TextLine(),
        Table("layouts", _COLUMNS, rows[:_SHOWN], fold=rows[_SHOWN:], fold_note="slower layouts; explain --json shows them"),
    ]  # fmt: skip
    return Doc((*nodes, *_rejected(found.rejected), TextLine(), TextLine(_CAUTION)))


_CAUTION = "calculated, not measured: docs/layouts.md has the assumptions and the error on published runs"


def _headline(shape: Shape, found: Found, cluster: Cluster, devices: int) -> str:
    parts = [f"Layouts of {shape.name} on {devices} x {cluster.kind.name}"]
    if not found.fitting:
        return f"{parts[0]} · none fits"
    best = found.fitting[0]
    return f"{parts[0]} · {best.layout.mesh}: {show_rate(best.rate, shape.unit)} predicted"


def _setting(shape: Shape, cluster: Cluster, batch: int) -> str:
    many = f"{len(shape.blocks)} blocks" if len(shape.blocks) > 1 else "1 block"
    return (
        f"{show_count(shape.parameters)} weights in {many}, {show_count(shape.flops_per_sample / 1e9)} GFLOP per sample, "
        f"batch {batch}; "
        f"{cluster.kind.words}, {cluster.network.per_node} per node, {cluster.network.near.name} inside, "
        f"{cluster.network.far.name} between"
    )


def _row(one: Estimate, shape: Shape) -> dict[str, Any]:
    layout, times = one.layout, one.times
    bubble = times.bubble_s / times.step_s
    return {
        "mesh": layout.mesh,
        "micro_batch": layout.micro_batch,
        "how": _how(layout),
        "memory_bytes": Cell(one.memory.reserved, show_bytes(one.memory.reserved)),
        "step_s": Cell(times.step_s, show_seconds(times.step_s)),
        "communication_share": Cell(times.communication_share, show_share(times.communication_share)),
        "bubble_share": Cell(bubble, show_share(bubble) if bubble else ""),
        "rate": Cell(one.rate, show_rate(one.rate, shape.unit)),
        "parts": dict(vars(one.memory)),
        "communication_s": times.communication_s,
        "schedule": layout.schedule if layout.pipeline > 1 else None,
        "recompute": layout.recompute,
    }


def _how(layout: ParallelLayout) -> str:
    words = [layout.schedule] if layout.pipeline > 1 else []
    words += ["recomputed"] if layout.recompute == "full" else []
    return ", ".join(words) or "plain"


def _rejected(rejected: Sequence[RejectedLayout]) -> list[Node]:
    """In text, each reason once with its number of layouts; in JSON, all layouts."""
    every = [{"mesh": one.layout.mesh, "why": one.why} for one in rejected]
    if not every:
        return [Fields({"rejected": []})]
    reasons: dict[str, list[str]] = {}
    for one in sorted(rejected, key=lambda one: one.least.memory.used if one.least else 0.0):
        reasons.setdefault(_TOO_LARGE if one.least else one.why, []).append(one.layout.mesh)
    nearest = min(
        (one for one in rejected if one.least), key=lambda one: one.least.memory.used if one.least else 0.0, default=None
    )
    lines = [
        TextLine(f"  {_named(which)}: {nearest.why if nearest and why == _TOO_LARGE else why}")
        for why, which in list(reasons.items())[:_REASONS]
    ]
    more = len(reasons) - len(lines)
    tail = [TextLine(f"  ({more} more reasons; explain --json shows them)")] if more > 0 else []
    return [TextLine(), TextLine(f"{len(every)} layouts are not possible:"), *lines, *tail, Fields({"rejected": every})]


def _named(meshes: list[str]) -> str:
    return meshes[0] if len(meshes) == 1 else f"{meshes[0]} and {len(meshes) - 1} more"
