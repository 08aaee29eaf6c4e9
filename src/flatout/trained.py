"""What is left when a run has trained: its model, and other data read as its own was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from flatout.base.errors import DataError, StoreError
from flatout.data.arrays import arrays
from flatout.data.photos.images import other_images
from flatout.data.source import Source
from flatout.data.specs import parse_data
from flatout.engine.job import Job
from flatout.models.finetune import load_weights
from flatout.recipe import Recipe
from flatout.store.run_folder import RunFolder


def trained_model(folder: RunFolder, job: Job) -> nn.Module:
    """The final weights; of an unfinished run those of its best, else its last checkpoint."""
    if folder.weights_path.exists():
        load_weights(job.model, folder.weights_path)
        return job.model
    checkpoints = folder.checkpoints()
    best = checkpoints.best()
    if best is not None:
        state = checkpoints.load(best["step"])
    else:
        found = checkpoints.load_latest(lambda step, why: None)
        if found is None:
            raise StoreError(f"{folder.name} has no weights yet")
        state = found[1]
    job.model.load_state_dict(state["model"])
    if state["average"] is not None:
        with torch.no_grad():
            for parameter, average in zip(job.model.parameters(), state["average"], strict=True):
                parameter.copy_(average)
    return job.model


def read_like(recipe: Recipe, job: Job, path: str, targets: bool, cache: Path | None = None) -> Source:
    """A file of other data, read as the run's own was: its alphabet, its layout, its labels."""
    written = dict(recipe.data) if isinstance(recipe.data, Mapping) else {}
    reading = dict(job.data.reading)
    if job.data.preparation is not None:
        scanned = job.data.preparation.scan(path, targets, **reading)
        rows: Source = job.data.preparation.read(scanned, targets, on_bad=reading["on_bad"])
        return rows
    if reading.pop("images", False):
        return other_images(path, labels=job.data.labels or job.data.classes, targets=targets, **reading)
    if "text" in written:
        own = [part for part in (written["text"], written.get("validation")) if part is not None]
        paths = [one for part in own for one in ([part] if isinstance(part, str) else part)]
        found = parse_data({**written, "text": paths, "validation": path}, recipe.folder, cache)
        if strange := sorted(set(found.alphabet or "") - set(job.data.alphabet or "")):
            raise DataError(f"{path} has characters that the training text has not: {' '.join(map(repr, strange[:10]))}")
        if (found.vocabulary or 0) > (job.data.vocabulary or 0):
            raise DataError(f"{path} has tokens up to {(found.vocabulary or 0) - 1}, the model knows {job.data.vocabulary}")
    elif targets and "arrays" in written and job.data.labels:
        written.pop("holdout", None)
        found = parse_data({**written, "validation": path}, recipe.folder)
    else:
        plain = arrays(path, layout=written.get("layout"))
        if targets and job.objective.name == "classify" and (plain.classes or 0) > (job.data.classes or 0):
            known = f"0 to {(job.data.classes or 0) - 1}"
            raise DataError(f"{path} has labels up to {(plain.classes or 0) - 1}, the model was trained on {known}")
        return plain.train
    assert found.validation is not None
    return found.validation
