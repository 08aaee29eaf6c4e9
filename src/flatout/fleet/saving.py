"""Predict how long saving takes, before a run has measured it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flatout.base.errors import FlatoutError
from flatout.base.units import show_bytes, show_count
from flatout.recipe.schema import Recipe

WRITES_BYTES_PER_S = 200e6  # one writer on a slow shared network volume
_OWN_SECONDS = 1.0  # names, checksums and renaming, independent of the size
_COPIES = {"sgd": 1, "adam": 2, "adamw": 2}  # values that an optimizer keeps per trained weight


@dataclass(frozen=True)
class SaveTime:
    seconds: float | None
    why: str


def predict_save(recipe: Recipe, cache: Path | None = None) -> SaveTime:
    """From the sizes of weights and optimizer state; no weights are allocated."""
    try:
        parameters, size = state_size(recipe, cache)
    except FlatoutError as error:
        return SaveTime(None, f"unknown: {str(error).splitlines()[0]}")
    seconds = _OWN_SECONDS + size / WRITES_BYTES_PER_S
    rate = f"{show_bytes(WRITES_BYTES_PER_S)}/s"
    return SaveTime(seconds, f"{show_count(parameters)} parameters and their optimizer, {show_bytes(size)} at {rate}")


def state_size(recipe: Recipe, cache: Path | None = None) -> tuple[int, int]:
    """Number of parameters, and bytes of a checkpoint. Reads the data, which sets the sizes of the first and last layer."""
    from flatout.models.dataless import WeightsBudget
    from flatout.recipe.build import build_job

    job = build_job(recipe, cache, weights_budget=WeightsBudget(limit_bytes=0))
    copies = 2 if callable(job.optimizer) else _COPIES.get(job.optimizer.name, 2)
    weights = list(job.model.parameters())
    trained = sum(weight.numel() * 4 for weight in weights if weight.requires_grad)
    kept = sum(value.numel() * value.element_size() for value in job.model.state_dict().values())
    averaged = trained if job.ema else 0
    return sum(weight.numel() for weight in weights), kept + copies * trained + averaged
