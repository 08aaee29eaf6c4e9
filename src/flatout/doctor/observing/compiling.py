"""What torch.compile did: its time, graph breaks, and reasons for recompiling."""

from __future__ import annotations

import sys
from typing import Any

from flatout.doctor import where
from flatout.doctor.seen import CompileRecord


def compiled_so_far(warm_up: int = 0) -> CompileRecord:
    """Read from dynamo's records; empty if the script compiles nothing.

    The first `warm_up` compilations are necessary and do not count as recompiles.
    """
    told = sys.modules.get("torch._dynamo.utils")
    if told is None:
        return CompileRecord()
    found = CompileRecord()
    for number, metrics in enumerate(told.get_compilation_metrics()):
        seconds = _seconds(metrics)
        found.seconds += seconds
        found.compiles += 1
        reason = getattr(metrics, "recompile_reason", None)
        if reason and number >= warm_up:
            is_own = bool(metrics.co_filename) and where.is_own(metrics.co_filename)
            place = where.place(metrics.co_filename, metrics.co_firstlineno) if is_own else ""
            found.recompiles.append((place, _first_line(reason), seconds))
    for reason in getattr(told, "graph_break_reasons", ()):
        found.breaks.append((_place_of(reason), _first_line(str(reason.reason))))
    return found


def _seconds(metrics: Any) -> float:
    spent_us = getattr(metrics, "duration_us", None)
    return spent_us / 1e6 if spent_us else float(getattr(metrics, "entire_frame_compile_time_s", None) or 0.0)


def _place_of(reason: Any) -> str:
    for frame in reversed(list(getattr(reason, "user_stack", None) or [])):
        if where.is_own(frame.filename):
            return where.place(frame.filename, frame.lineno or 0)
    return ""


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:200] if lines else ""
