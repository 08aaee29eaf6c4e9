"""A variable keeps the autograd graph of every step alive until memory runs out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from flatout.base.units import show_bytes
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_MANY_STEPS = 20


def look(case: Case) -> Iterator[Finding]:
    memory = case.seen.memory
    for kept in memory.kept[:1]:
        yield Finding(
            "memory_growth",
            case.step_ms,
            kept.where,
            f"{kept.name!r} keeps the autograd graph of every step alive: the run slows down until it runs out of memory",
            f"it holds {kept.nodes} graph nodes, and more after each step{_growth(case)}",
            f"use .detach() or .item() on the values added to {kept.name}",
            short=".detach()",
            gain=1.0,
        )
    if not memory.kept and case.on_device and (rate := _bytes_per_step(case)) > 2**20:
        yield Finding(
            "memory_growth",
            case.step_ms,
            "",
            "The memory in use on the device grows with every step",
            f"{show_bytes(rate)} per step, and never less",
            "look for lists of tensors, hooks and caches that are never cleared",
            gain=1.0,
        )


def _growth(case: Case) -> str:
    rate = _bytes_per_step(case)
    return f"; memory grows by {show_bytes(rate)} per step" if rate > 2**16 else ""


def _bytes_per_step(case: Case) -> float:
    """0 unless memory grew between all observations."""
    points = case.seen.memory.bytes_by_step
    if len(points) < 4 or points[-1][0] - points[0][0] < _MANY_STEPS // 2:
        return 0.0
    rises = all(b[1] > a[1] for a, b in pairwise(points))
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0]) if rises else 0.0
