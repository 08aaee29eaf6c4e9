"""Percentiles of the times of calls, and the joules of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def latencies_of(arm: Mapping[str, Any], joules_a_row: float | None = None) -> dict[str, float | None]:
    calls = np.sort(np.asarray(arm["calls_s"]))
    marks = {f"p{share:g}": float(np.quantile(calls, share / 100)) for share in (50, 90, 95, 99, 99.9)}
    return {**marks, "calls": float(len(calls)), "joules_a_row": joules_a_row}


def latency_s(latencies: Mapping[str, Any], percentile: float) -> float:
    """By the nearest measured percentile that is not lower."""
    marks = sorted(float(name[1:]) for name in latencies if name.startswith("p"))
    mark = next((one for one in marks if one >= percentile), marks[-1])
    return float(latencies[f"p{mark:g}"])
