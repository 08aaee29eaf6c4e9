"""Autograd's anomaly detection is on: each operator keeps a stack trace, and each gradient is searched for NaN."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from flatout.base.units import show_seconds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_CALLS = 40


def look(case: Case) -> Iterator[Finding]:
    if not case.seen.anomaly:
        return
    nodes = sum(every for _, every in case.seen.look.nodes.values()) / max(case.seen.look.steps, 1) if case.seen.look else 0
    nodes = nodes or case.per_step(sum(n for name, n in case.trace.counts.items() if name.startswith("autograd::engine")))
    cost_ms = min(1e3 * nodes * _one_s(), 0.95 * case.train_ms)
    yield Finding(
        "anomaly_detection",
        cost_ms,
        case.places.get("launch-bound", ""),
        "Autograd's anomaly detection is on",
        f"{nodes:.0f} operators per step keep a stack trace and have their gradient searched for NaN; measured here, "
        f"this takes {show_seconds(cost_ms / 1e3)} per step",
        "remove torch.autograd.set_detect_anomaly(True) once the NaN is found",
        short="no anomaly detection",
    )


def _one_s() -> float:
    """What it costs per operator and its gradient."""

    def passed(on: bool) -> float:
        x = torch.ones(16, requires_grad=True)
        with torch.enable_grad(), torch.autograd.set_detect_anomaly(on):
            began_s = time.perf_counter()
            y = x
            for _ in range(_CALLS):
                y = y * 1.0
            y.sum().backward()
            return (time.perf_counter() - began_s) / _CALLS

    try:
        return max(min(passed(True) for _ in range(3)) - min(passed(False) for _ in range(3)), 0.0)
    except RuntimeError:  # the script may leave torch in a mode that forbids this
        return 5e-5
