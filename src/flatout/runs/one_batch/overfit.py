"""`overfit`: trains on one batch until its loss is near the lowest that is possible, without dropout, augmentation or decay."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flatout.data.feeds.feed import feed as make_feed
from flatout.engine.assembly import make_step
from flatout.engine.device import sync_point
from flatout.engine.job import Job
from flatout.engine.passes import Batch
from flatout.engine.settings import Settings
from flatout.engine.surroundings import process_set_up
from flatout.machine.device import pick_device
from flatout.plan.make import default_plan
from flatout.plan.trials.quiet import NoDropout
from flatout.recipe.build import build_job, check_job
from flatout.recipe.load import recipe_given
from flatout.recipe.outputs import why_outputs_are_doubtful
from flatout.runs.one_batch.floor import Floor, floor_of
from flatout.runs.one_batch.parts import Outputs, StuckPart, stuck_parts
from flatout.runs.trained import CACHE

_RATES = (3e-3, 3e-2, 3e-4)
_LOOK_EVERY = 10
_LEFT = 0.03  # of the way from the first loss to the lowest possible one


@dataclass(frozen=True)
class OneBatch:
    """`learned`: the loss came within 3% of the way to the lowest possible one, `floor`.

    `warning`: why the output may not be what the loss expects.
    """

    learned: bool
    first_loss: float
    loss: float
    floor: float
    rows: int
    steps: int
    lr: float
    seconds: float
    stuck: tuple[StuckPart, ...]
    warning: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def overfit(recipe: Any, *, steps: int = 300, cache: Path | str | None = CACHE) -> OneBatch:
    """Trains a copy of a recipe's model on one batch: `.learned` says whether it knows it by heart, `.stuck` which parts can't.

    `steps`: at each of up to four learning rates: the recipe's own, and three others. Nothing is stored.
    """
    asked, kept = recipe_given(recipe), None if cache is None else Path(cache)
    job = build_job(asked, kept)
    device = pick_device(asked.pins.get("device", "auto"))
    check_job(job, device)
    warning = why_outputs_are_doubtful(job, device)
    settings = replace(default_plan(asked, job, kept).settings, graph=False, compile="off", mesh="")
    rates = _RATES if asked.searches_rate else (job.lr, *_RATES)
    return replace(_overfitted(job, settings, rates, steps), warning=warning)


def _overfitted(job: Job, settings: Settings, rates: tuple[float, ...], steps: int) -> OneBatch:
    began_s = time.perf_counter()
    pristine, device = copy.deepcopy(job.model).cpu(), torch.device(settings.device)
    bare = replace(job, data=replace(job.data, augment=(), training=None), weight_decay=0.0, ema=None)
    feed = make_feed(bare.data, settings.tier, job.batch, device, job.seed)
    try:
        batch = {name: column.clone() for name, column in feed.next(feed.next_size(job.batch)).items()}
    finally:
        feed.close()
    floor = floor_of(bare, batch)
    tried: list[OneBatch] = []
    for rate in dict.fromkeys(rates):
        found = _at(replace(bare, model=copy.deepcopy(pristine)), settings, batch, floor, rate, steps)
        tried.append(found)
        if found.learned:
            break
    best = min(tried, key=lambda one: one.loss if math.isfinite(one.loss) else math.inf)
    return replace(best, steps=sum(one.steps for one in tried), seconds=time.perf_counter() - began_s)


def _at(job: Job, settings: Settings, batch: Batch, floor: Floor, rate: float, steps: int) -> OneBatch:
    seen, losses = Outputs(), list[float]()
    rows = len(next(iter(batch.values())))
    with process_set_up(settings, job.seed), NoDropout():
        made = make_step(job, job.model, settings)
        made.step.update.set_rate(rate)
        for number in range(steps):
            made.step({name: column.clone() for name, column in batch.items()})
            if number % _LOOK_EVERY == _LOOK_EVERY - 1 or number in (0, steps - 1):
                losses += made.step.records.drain().losses
                if not math.isfinite(losses[-1]) or _is_learned(losses, floor):
                    break
        learned = _is_learned(losses, floor)
        with sync_point(), seen.watched(made.step.model):
            made.step.passes.mean_loss(batch)
        stuck = [*stuck_parts(made.step.model, seen, learned), *_of_labels(floor)]
    loss = losses[-1] if math.isfinite(losses[-1]) else math.inf
    return OneBatch(learned, losses[0], loss, floor.loss, rows, len(losses), rate, 0.0, tuple(stuck))


def _is_learned(losses: list[float], floor: Floor) -> bool:
    return losses[-1] - floor.loss <= _LEFT * max(losses[0] - floor.loss, 1e-12)


def _of_labels(floor: Floor) -> list[StuckPart]:
    found = []
    if floor.conflicting:
        what = f"{floor.conflicting} rows have the same input as a row with another label"
        found.append(StuckPart("the labels", what, "no model can tell them apart: look at the columns that are left out"))
    if floor.smoothing:
        what = f"label_smoothing {floor.smoothing:g} keeps the loss above {floor.loss:.4g}"
        found.append(StuckPart("the objective", what, "nothing to do: the loss counts from there"))
    return found
