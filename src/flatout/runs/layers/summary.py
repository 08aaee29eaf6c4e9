"""`summary`: the layers of a recipe's or a run's model, or of any module, from one real step on a copy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from flatout.base.errors import UsageError
from flatout.data.feeds.feed import feed as make_feed
from flatout.engine.assembly import make_step
from flatout.engine.surroundings import process_set_up
from flatout.machine.device import pick_device
from flatout.plan.make import default_plan
from flatout.recipe.build import build_job, check_job
from flatout.recipe.load import recipe_given
from flatout.recipe.schema import Recipe
from flatout.runs.layers.view import LayerRow, ModelSummary
from flatout.runs.layers.watching import LayerFigures, StepWatch
from flatout.runs.record import Run
from flatout.runs.trained import CACHE

_CHEAP_S = 1.0
_TIMED = 3


def summary(model: Any, inputs: Any = None, *, measure: bool | None = None, cache: Path | str | None = CACHE) -> ModelSummary:
    """The layers of a recipe (or its file), of a run, or of a module with `inputs`: a tensor, a tuple or a dict.

    Runs one step on a copy. `measure`: also time the layers; by default if a step takes less than a second.
    """
    if isinstance(model, nn.Module):
        return _of_module(model, inputs, measure)
    if inputs is not None:
        raise UsageError("inputs are for a module: a recipe or a run has its own data")
    return _of_recipe(model.recipe if isinstance(model, Run) else recipe_given(model), cache, measure)


def _of_recipe(recipe: Recipe, cache: Path | str | None, measure: bool | None) -> ModelSummary:
    kept = None if cache is None else Path(cache)
    job = build_job(recipe, kept)
    check_job(job, pick_device(recipe.pins.get("device", "auto")))
    settings = replace(default_plan(recipe, job, kept).settings, graph=False, compile="off", mesh="", micro_batch=0)
    device = torch.device(settings.device)
    feed = make_feed(job.data, settings.tier, job.batch, device, job.seed)
    try:
        batch = {name: column.clone() for name, column in feed.next(feed.next_size(job.batch)).items()}
    finally:
        feed.close()
    rows = len(next(iter(batch.values())))
    with process_set_up(settings, job.seed):
        made = make_step(job, copy.deepcopy(job.model), settings)
        step = made.step
        return _summed(step.model, device, rows, lambda: step.gradients(dict(batch), rows), measure)


def _of_module(model: nn.Module, inputs: Any, measure: bool | None) -> ModelSummary:
    if inputs is None:
        raise UsageError("a module needs inputs: fo.summary(model, x), a tuple, or a dict of what forward takes by name")
    copied, leaves = copy.deepcopy(model), [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    device = leaves[0].device if leaves else torch.device("cpu")
    rows = leaves[0].shape[0] if leaves and leaves[0].dim() else 1

    def step() -> None:
        if isinstance(inputs, Mapping):
            output = copied(**inputs)
        else:
            output = copied(*inputs) if isinstance(inputs, tuple) else copied(inputs)
        found = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if found:
            found[0].float().mean().backward()

    with torch.random.fork_rng(devices=[]):
        return _summed(copied.to(device), device, rows, step, measure)


def _summed(
    model: nn.Module, device: torch.device, rows: int, step: Callable[[], object], measure: bool | None
) -> ModelSummary:
    watching = StepWatch(model, device)
    with watching.counting():
        step()
    timed = False
    if measure is not False:
        trial = StepWatch(model, device)
        with trial.timing():
            step()
        timed = measure is True or trial.seconds < _CHEAP_S
        for _ in range(_TIMED if timed else 0):
            with watching.timing():
                step()
    whole_s = watching.seconds if timed else None
    layers = tuple(
        _row(name, module, watching.found[id(module)], whole_s) for name, module in model.named_modules(remove_duplicate=True)
    )
    top = layers[0]
    step_s = None if whole_s is None else whole_s / _TIMED
    return ModelSummary(layers, rows, top.parameters, top.trained, watching.flops, top.activation_bytes, step_s, str(device))


def _row(name: str, module: nn.Module, seen: LayerFigures, whole_s: float | None) -> LayerRow:
    parameters = list(module.parameters())  # a tied weight once
    return LayerRow(
        name=name or "model",
        kind=type(module).__name__,
        depth=name.count(".") + 1 if name else 0,
        outputs=tuple(seen.shapes),
        parameters=sum(one.numel() for one in parameters),
        trained=sum(one.numel() for one in parameters if one.requires_grad),
        flops=seen.forward_flops,
        activation_bytes=seen.kept_bytes,
        share=None if whole_s is None or not seen.calls else min(1.0, seen.seconds / whole_s),
        calls=seen.calls,
    )
