"""How long a training that never ran here would take: its steps, as long as the cost model of plans predicts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from flatout.base.errors import FlatoutError
from flatout.base.units import show_bytes, show_seconds
from flatout.pipelines.asked.stage_kinds import TrainStage
from flatout.pipelines.stages.commands import as_yaml
from flatout.pipelines.stages.forecast import Forecast
from flatout.pipelines.stages.resolved import ResolvedPipeline, ResolvedStage

_MOST_BYTES = 1 << 30  # of data that is read for an estimate


def estimate(
    stage: ResolvedStage, pipeline: ResolvedPipeline, cache: Path, size: float | None, unmade: Sequence[str]
) -> Forecast:
    """`size`: bytes of its inputs, if they are all there; `unmade`: stages that have to make some of them first."""
    assert isinstance(stage.asked, TrainStage)
    if stage.recipe is None:
        by = "Python, which is not run for this" if stage.recipe_file is not None else "a search"
        return _none(f"its recipe is made by {by}")
    if size is None:
        return _none(f"its data is made by {', '.join(unmade)}" if unmade else "its data is not there")
    if size > _MOST_BYTES:
        return _none(f"{show_bytes(size)} of data would have to be read; flatout explain does that")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _predicted(stage, stage.asked, pipeline, cache)
    except FlatoutError as error:
        return _none(str(error).splitlines()[0])


def _none(why: str) -> Forecast:
    return Forecast(None, None, f"never ran here; no estimate: {why}")


def _predicted(stage: ResolvedStage, asked: TrainStage, pipeline: ResolvedPipeline, cache: Path) -> Forecast:
    from flatout.models.dataless import WeightsBudget
    from flatout.plan.make import default_plan
    from flatout.plan.situation import total_steps
    from flatout.recipe.build import build_job
    from flatout.recipe.load import read_recipe, recipe_from

    changes = [f"{key}={as_yaml(value)}" for key, value in asked.set.items()]
    if stage.recipe_file is not None:
        recipe = read_recipe(stage.recipe_file, changes)
    else:
        recipe = recipe_from(dict(stage.recipe or {}), pipeline.home, changes)
    job = build_job(recipe, cache, weights_budget=WeightsBudget())
    if job.budget.unit == "seconds":
        return Forecast(job.budget.amount, None, "its budget")
    steps = total_steps(job)
    prediction = default_plan(recipe, job, cache).prediction
    if steps is None or prediction.step_s is None:
        return _none(prediction.reason or f"its budget is {job.budget.amount:g} {job.budget.unit}")
    words = f"estimate: {steps:,} steps of {show_seconds(prediction.step_s)}, without its start"
    return Forecast(steps * prediction.step_s, None, words)
