"""The verbs over a recipe and its runs, each a CLI command too: run, explain, evaluate, predict, load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.base.tree import Doc, Fields, TextLine
from flatout.engine.settings import Settings
from flatout.machine.others_work import OthersWork, busy_words
from flatout.models.dataless import WeightsBudget
from flatout.plan.explain import explain as explain_plan
from flatout.plan.layouts.fitting import why_not_here
from flatout.plan.make import checked_plan, label_of
from flatout.recipe.build import build_job
from flatout.recipe.schema import Recipe
from flatout.runs.evaluate import evaluate
from flatout.runs.predict import predict
from flatout.runs.record import Run, load
from flatout.runs.train import PLANNING, planning_limit, run
from flatout.runs.trained import CACHE

__all__ = ["CACHE", "PLANNING", "Run", "evaluate", "explain", "explain_layouts", "load", "predict", "run"]


def explain(
    recipe: Recipe,
    *,
    cache: Path | str | None = CACHE,
    analyze: bool = False,
    planning: str = PLANNING,
    say: Callable[[str], None] = lambda line: None,
) -> Doc:
    """The plan that `run` would use, with reasons, predictions and the results of earlier trials. Trains no step.

    `analyze` tries the settings on copies of the model and shows what was measured next to what was predicted.
    """
    kept, others = None if cache is None else Path(cache), OthersWork()
    # trials train copies of the model: they need its weights
    job = build_job(recipe, kept, weights_budget=None if analyze else WeightsBudget())
    how: dict[str, Any] = {"analyze": True, "say": say} if analyze else {"recall": True}
    plan, receipt = checked_plan(recipe, job, kept, limit_s=planning_limit(planning), **how)
    short = why_not_here(job, plan.settings)
    doc = explain_plan(plan, receipt=receipt, short_of_memory=short, busy=busy_words(others.use()))
    if not recipe.searches_rate:
        return doc
    words = "learning rate: auto, searched for when a run starts; flatout find-lr shows the search and its result"
    return Doc((*doc.nodes, TextLine(), TextLine(words), Fields({"lr": "auto"})))


def explain_layouts(
    recipe: Recipe, *, devices: int, device_kind: str, per_node: int | None = None, cache: Path | str | None = CACHE
) -> Doc:
    """Every mesh in which the model fits on this many devices of a kind: memory, step time and communication.

    The devices need not exist here. `compile=on` in the recipe's settings is taken into account.
    """
    from flatout.plan.layouts.jobs import explain_job_layouts  # here: a run starts sooner without it

    job = build_job(recipe, None if cache is None else Path(cache), weights_budget=WeightsBudget())
    asked = Settings(compile=recipe.pins.get("compile", "off"))
    name = label_of(recipe, job)
    return explain_job_layouts(job, devices=devices, device_kind=device_kind, name=name, per_node=per_node, settings=asked)
