"""`lr: auto`: the search at the start of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flatout.base.errors import TrainingError, UsageError
from flatout.engine.job import Job
from flatout.machine.device import pick_device
from flatout.plan.make import default_plan
from flatout.recipe.build import check_job
from flatout.recipe.schema import Recipe
from flatout.runs.rates.found import FoundRate
from flatout.runs.rates.search import LIMIT, search_rate


def rate_for_run(recipe: Recipe, job: Job, cache: Path | None, say: Callable[[str], None]) -> FoundRate:
    if job.data.train.stream is not None:
        raise UsageError(
            "lr: auto reads the first rows several times, which a stream may give only once: set lr, or use "
            "`flatout find-lr RECIPE`, which reads the stream in a process of its own"
        )
    check_job(job, pick_device(recipe.pins.get("device", "auto")))
    found = rate_for(recipe, job, cache, limit=LIMIT, say=say)
    if found.lr is None:
        raise TrainingError(f"lr: auto found no learning rate: {found.why}. To train all the same, set lr to a number")
    return found


def rate_for(recipe: Recipe, job: Job, cache: Path | None, *, limit: str, say: Callable[[str], None]) -> FoundRate:
    return search_rate(job, default_plan(recipe, job, cache).settings, cache, limit=limit, say=say)
