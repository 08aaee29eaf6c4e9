"""What a measurement of a run depends on, as a key under which it is stored for later runs."""

from __future__ import annotations

import hashlib
import json
import platform

import torch

from flatout import __version__
from flatout.base.source import lasting_text, source_text
from flatout.engine.job import Job
from flatout.machine.device import device_name
from flatout.machine.facts import read_facts
from flatout.models.build import source_hash
from flatout.recipe.schema import Recipe

# keys of a recipe that do not change what a trial measures
_NOT_OF_A_TRIAL = (
    "budget",
    "schedule",
    "seed",
    "name",
    "evaluate",
    "early_stop",
    "price_per_hour",
    "track",
    "settings",
    "data",  # only its shapes count
)


def trial_key(recipe: Recipe, job: Job, device: torch.device, without: tuple[str, ...] = ()) -> str:
    """A hash of the model as written and as built, its batch, the loss and optimizer, the device and its threads."""
    asked = {name: value for name, value in recipe.written().items() if name not in (*_NOT_OF_A_TRIAL, *without)}
    shapes = {name: [list(column.shape), str(column.dtype)] for name, column in job.data.schema().items()}
    parts = (*(part for part in (recipe.objective, recipe.optimizer) if callable(part)), *(k.turn for k in recipe.own_knobs))
    tensors = (*job.model.named_parameters(), *job.model.named_buffers())
    built = [lasting_text(job.model), *(f"{name} {tuple(t.shape)} {t.dtype} {t.requires_grad}" for name, t in tensors)]
    own = [source_hash(recipe.model, weights=False), *map(source_text, parts), *built]
    place = [device_name(device), torch.get_num_threads() if device.type == "cpu" else 0, read_facts().cpu.model]
    told = json.dumps([asked, shapes, own, place, job.rows_per_step], sort_keys=True, default=lasting_text)
    return hashlib.sha256(told.encode()).hexdigest()[:24]


def versions() -> dict[str, str]:
    cuda = torch.version.cuda or "none"
    return {"flatout": __version__, "torch": torch.__version__, "cuda": cuda, "python": platform.python_version()}
