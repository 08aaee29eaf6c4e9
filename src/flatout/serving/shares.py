"""How many fronts a server has."""

from __future__ import annotations

from collections.abc import Sequence

_SPARE = 1.2


def fronts_needed(cores: int, row_s: float, model_s: float, devices: int, on_cpu: bool) -> int:
    """So many that they keep up: with devices of their own speed; on a CPU, they share the cores with the executors by cost."""
    if on_cpu:
        return max(1, min(cores, round(cores * row_s / (row_s + model_s))))
    return max(1, min(cores - 1, round(_SPARE * devices * row_s / model_s + 0.5)))


def best_row_s(curve: Sequence[Sequence[float]]) -> float:
    """Of (rows, seconds): of one row in the best batch."""
    return min(seconds / rows for rows, seconds in curve)
